"""tunefa/report/failures.py: failures by kernel and by reason."""

from __future__ import annotations

from tests.support import sample_report
from tunefa.experiments.table import Table
from tunefa.report import failures
from tunefa.report.content import Content, FailureCount


def counted(kernel: str, reason: str, count: int, device: str = "x") -> FailureCount:
    return FailureCount(kernel, "sm90", device, "crashed", reason, count)


def test_chips_are_added_up_and_the_most_frequent_come_first() -> None:
    given = [
        counted("rare", "a", 1),
        counted("often", "b", 2),
        counted("often", "c", 3),
        counted("often", "b", 2, "y"),
    ]
    section = failures.section(Content(failures=given))
    assert [part.title for part in section.parts] == ["often", "rare"]
    (table,) = section.parts[0].blocks
    assert isinstance(table, Table)
    assert table.title == "7 configs failed"
    assert table.rows == [["crashed", "b", "4"], ["crashed", "c", "3"]]


def test_rare_reasons_are_one_row() -> None:
    given = [counted("k", f"reason {place}", 100 - place) for place in range(20)]
    (part,) = failures.section(Content(failures=given)).parts
    (table,) = part.blocks
    assert isinstance(table, Table)
    assert len(table.rows) == failures.MOST_REASONS + 1
    assert table.rows[-1] == ["", "8 other reasons", "676"]  # 88 + 87 + ... + 81


def test_a_failure_without_a_reason() -> None:
    (part,) = failures.section(Content(failures=[counted("k", "", 1)])).parts
    (table,) = part.blocks
    assert isinstance(table, Table) and table.rows[0][1] == "no reason was given"


def test_no_failures_and_no_journals_are_different() -> None:
    none = failures.section(Content(searches=[sample_report.search()]))
    assert none.empty.startswith("No config failed")
    assert failures.section(Content()).empty.startswith("There are no journals")
