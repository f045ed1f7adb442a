"""Progress of what is fetched, on standard error: a bar on a terminal, a line a step elsewhere."""

from __future__ import annotations

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tunefa.reports import text


class Reporter:
    """Is called with a step and how many of how many bytes are there. A context manager."""

    def __init__(self) -> None:
        self._console = text.console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            expand=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)
        self._step = ""

    def __enter__(self) -> Reporter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Shows where it stands; a total of 0 is unknown."""
        if step != self._step:
            self._bar.reset(self._task, description=step, total=total or None)
            if not self._console.is_terminal:
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                self._console.print(f"{step}{size}", soft_wrap=True)
            self._step = step
        self._bar.update(self._task, completed=done)
