"""Progress of what is fetched, on standard error: a bar on a terminal, a line a step elsewhere."""

from __future__ import annotations

from rich.progress import DownloadColumn, TimeRemainingColumn

from tunefa.cli.reports.bar import OnStderr


class Reporter(OnStderr):
    """Is called with a step and how many of how many bytes are there. A context manager."""

    def __init__(self) -> None:
        super().__init__("", None, DownloadColumn(), TimeRemainingColumn())
        self._step = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Shows where it stands; a total of 0 is unknown."""
        if step != self._step:
            self._bar.reset(self._task, description=step, total=total or None)
            if not self._console.is_terminal:
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                self._console.print(f"{step}{size}", soft_wrap=True)
            self._step = step
        self._bar.update(self._task, completed=done)
