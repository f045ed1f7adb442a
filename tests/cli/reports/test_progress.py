"""tunefa/cli/reports/progress.py: what a terminal shows between reports, and lines elsewhere."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from tunefa.cli.reports import progress, text
from tunefa.cli.reports.progress import Reporter
from tunefa.search.request import Progress


def report(stage: str, elapsed_s: float, fraction: float, earlier: float = 0.0) -> Progress:
    return Progress("a_kernel", 3, 0, None, elapsed_s, fraction, stage, earlier)


def left(reporter: Reporter) -> str:
    """The bar's words on the time left."""
    return str(progress._Left().render(reporter._bar.tasks[0]))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The text that is written to a terminal."""
    file = io.StringIO()
    monkeypatch.setattr(
        text, "console", lambda stderr: Console(file=file, force_terminal=True, width=80)
    )
    return file


def test_the_time_left_counts_down_between_reports(
    shown: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    with Reporter() as reporter:
        reporter(report("search", 10.0, 0.25))
        assert left(reporter) == "left 0:30"
        now += 12.0
        assert left(reporter) == "left 0:18"
    assert "search: 3 done" in shown.getvalue() and "25%" in shown.getvalue()


def test_what_an_earlier_search_has_done_took_none_of_the_time(shown: io.StringIO) -> None:
    """An earlier search made 90 of 200 trials; 10 more took 20 s."""
    with Reporter() as reporter:
        reporter(report("search", 20.0, 0.5, earlier=0.45))
        assert reporter._bar.tasks[0].fields["ends"] - time.monotonic() == pytest.approx(
            200, abs=20
        )
        reporter(report("search", 1.0, 0.45, earlier=0.45))
        assert left(reporter) == "left -:--"


@pytest.mark.parametrize(
    ("stage", "expected"), [("search", "left -:--"), ("check", "left: seconds")]
)
def test_where_the_time_left_is_not_known(shown: io.StringIO, stage: str, expected: str) -> None:
    with Reporter() as reporter:
        reporter(report(stage, 10.0, 0.0))
        assert left(reporter) == expected


def test_elsewhere_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter() as reporter:
        for elapsed_s in (1.0, 2.0, 3.0, 3.0 + progress._LINE_EVERY_S):
            reporter(report("search", elapsed_s, elapsed_s / 60))
        reporter(report("race", 20.0, 0.3))
    assert capsys.readouterr().err.splitlines() == [
        "search: 3 done (2%, about 59 s left)",
        "search: 3 done (22%, about 47 s left)",
        "race: 3 done",
    ]
