"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

from typing import TypeVar

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

from tunefa.cli.reports import text

Bar = TypeVar("Bar", bound="OnStderr")


class OnStderr:
    """Shows a progress bar. A context manager."""

    def __init__(self, description: str, total: float | None, *columns: ProgressColumn) -> None:
        """Makes the bar; `columns` follow the description and the bar."""
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

    def __enter__(self: Bar) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
