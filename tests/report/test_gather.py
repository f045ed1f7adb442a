"""tunefa/report/gather.py: the store, the journals and a folder, however damaged they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import sample_report
from tests.support.sample_records import measured
from tunefa.errors import TunefaError
from tunefa.report import gather
from tunefa.report.content import EXPERIMENTS, JOURNALS, STORE
from tunefa.store import journal, results


def test_an_empty_store_has_nothing_to_show() -> None:
    found = gather.gather()
    assert not [*found.records, *found.searches, *found.failures, *found.experiments]
    assert not any(found.remarks.values())


def test_everything_is_found(tmp_path: Path) -> None:
    results.default_store().add(measured())
    sample_report.journal("20260131T120000")
    sample_report.scaling().save(tmp_path / "scaling.json")
    found = gather.gather(tmp_path)
    assert [record.median_us for record in found.records] == [412.5]
    (search,) = found.searches
    (kernel,) = search.kernels
    assert kernel.trials == 6 and all(step.seconds is not None for step in kernel.steps)
    (failure,) = found.failures
    assert (failure.kernel, failure.outcome, failure.count) == ("a_kernel", "crashed", 1)
    assert [each.experiment for each in found.experiments] == ["scaling"]


def test_only_chips_that_are_asked_for(tmp_path: Path) -> None:
    results.default_store().add(measured())
    sample_report.journal("20260131T120000")
    sample_report.scaling().save(tmp_path / "scaling.json")
    found = gather.gather(tmp_path, lambda arch, device: arch == "sm80")
    assert not [*found.records, *found.searches, *found.failures, *found.experiments]


def test_a_damaged_journal_costs_itself_only() -> None:
    whole, torn, headless = (sample_report.journal(f"2026013{day}T120000") for day in "012")
    lines = torn.read_text().splitlines(keepends=True)
    torn.write_text("".join([*lines[:3], "{}\n", *lines[3:]]))
    headless.write_text("no journal\n\n")
    found = gather.gather()
    counts = {search.journal: search.kernels[0].trials for search in found.searches}
    assert counts == {whole.name: 6, torn.name: 2}
    assert {path.name for path in (torn, headless)} == {
        name
        for said in found.remarks[JOURNALS]
        for name in (torn.name, headless.name)
        if name in said
    }


def test_damaged_records_are_named() -> None:
    folder = results.user_root()
    folder.mkdir(parents=True)
    (folder / "odd.yaml").write_text("records: [")
    (said,) = gather.gather().remarks[STORE]
    assert "odd.yaml" in said


def test_only_the_newest_journals_of_a_workload_are_shown() -> None:
    for hour in range(4):
        sample_report.journal(f"20260131T1{hour}0000")
    found = gather.gather()
    assert [search.journal[:11] for search in found.searches] == ["20260131T13", "20260131T12"]
    (said,) = found.remarks[JOURNALS]
    assert said.startswith("2 older searches left out, so that the page stays small")
    assert sum(each.count for each in found.failures) == 4  # those of all


def test_only_so_many_journals_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MOST_SEARCHES", 2)
    for hour in range(3):
        sample_report.journal(f"20260131T1{hour}0000", f"q{1024 << hour}")
    assert len(gather.gather().searches) == 2


def test_replayed_searches_are_not_shown() -> None:
    path = sample_report.journal("20260131T120000")
    text = path.read_text().replace('"measured"', '"replayed"')
    path.write_text(text[: text.index(', "checksum"')] + "}\n")
    assert journal.header(path)["objective"] == "replayed"
    assert not gather.gather().searches


def test_a_folder_without_documents_is_said_to_be_so(tmp_path: Path) -> None:
    (said,) = gather.gather(tmp_path).remarks[EXPERIMENTS]
    assert said.startswith(f"There are no JSON documents in {tmp_path}")


def test_documents_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text("[" * 100_000)
    (tmp_path / "c.json").mkdir()
    os.mkfifo(tmp_path / "d.json")
    (tmp_path / "e.json").write_text('{"schema": 1, "experiment": ["scaling"]}')
    sample_report.scaling().save(tmp_path / "f.json")
    found = gather.gather(tmp_path)
    said = found.remarks[EXPERIMENTS]
    assert [name in text for name, text in zip("abcde", said, strict=True)] == [True] * 5
    assert len(found.experiments) == 1


def test_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match="cannot list the folder"):
        gather.gather(tmp_path / "gone")
