"""The progress of downloads on standard error: a bar on a terminal, else a line for each step."""

from __future__ import annotations

from rich.progress import DownloadColumn, TimeRemainingColumn

from tunefa.cli.reports.bar import OnStderr


class Reporter(OnStderr):
    """Shows the bytes of each step that were downloaded. A context manager."""

    def __init__(self) -> None:
        super().__init__("", None, DownloadColumn(), TimeRemainingColumn())
        self._step = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Shows that `done` of `total` bytes of a step are here; 0 means an unknown total."""
        if step != self._step:
            self._bar.reset(self._task, description=step, total=total or None)
            if not self._console.is_terminal:
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                self._console.print(f"{step}{size}", soft_wrap=True)
            self._step = step
        self._bar.update(self._task, completed=done)
