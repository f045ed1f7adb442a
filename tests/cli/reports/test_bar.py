"""tunefa/cli/reports/bar.py: a bar where standard error is a terminal, and nothing elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tunefa.cli.reports import text
from tunefa.cli.reports.bar import OnStderr


@pytest.mark.parametrize("terminal", [True, False])
def test_it_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    file = io.StringIO()
    asked: list[bool] = []

    def console(stderr: bool) -> Console:
        asked.append(stderr)
        return Console(file=file, force_terminal=terminal, width=60)

    monkeypatch.setattr(text, "console", console)
    with OnStderr("fetching", 4.0):
        pass
    assert asked == [True], "standard output is for data"
    assert ("fetching" in file.getvalue()) is terminal


def test_it_ends_with_its_context_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    monkeypatch.setattr(text, "console", lambda stderr: console)
    shown = OnStderr("fetching", 4.0)
    with pytest.raises(KeyboardInterrupt), shown:
        assert shown._bar.live.is_started
        raise KeyboardInterrupt
    assert not shown._bar.live.is_started
