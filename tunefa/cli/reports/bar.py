"""A bar on standard error while something takes long, where that is a terminal."""

from __future__ import annotations

from typing import TypeVar

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

from tunefa.cli.reports import text

Shown = TypeVar("Shown", bound="OnStderr")


class OnStderr:
    """What shows one. A context manager."""

    def __init__(self, description: str, total: float | None, *columns: ProgressColumn) -> None:
        """`columns` stand behind the description and the bar."""
        self._console = text.console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            *columns,
            console=self._console,
            transient=True,
            expand=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(description, total=total)

    def __enter__(self: Shown) -> Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
