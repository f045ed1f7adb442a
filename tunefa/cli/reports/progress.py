"""The progress of a search on standard error: a bar on a terminal, else a line every 10 s."""

from __future__ import annotations

import time

from rich.progress import ProgressColumn, Task, TaskProgressColumn
from rich.text import Text

from tunefa.cli.reports import text
from tunefa.cli.reports.bar import OnStderr
from tunefa.search.request import Progress

_LINE_EVERY_S = 10.0


class _Left(ProgressColumn):
    """Counts down to the expected end, also between two reports."""

    def render(self, task: Task) -> Text:
        ends = task.fields.get("ends")
        if ends is None:
            return Text("left: seconds" if task.percentage >= 100 else "left -:--")
        minutes, seconds = divmod(max(0, round(ends - time.monotonic())), 60)
        return Text(f"left {minutes}:{seconds:02d}")


class Reporter(OnStderr):
    """Shows the progress of a search. A context manager."""

    def __init__(self) -> None:
        super().__init__("compiling", 1.0, TaskProgressColumn(), _Left())
        self._next_line_s = 0.0
        self._stage = ""

    def __call__(self, progress: Progress) -> None:
        """Shows one `Progress`."""
        words = _in_words(progress)
        searching = progress.stage == "search"  # the stages after it are short
        done = progress.fraction if searching else 1.0
        own = done - progress.earlier  # earlier trials took no time of this search
        left_s = progress.elapsed_s * (1 - done) / own if searching and own > 0 else None
        ends = None if left_s is None else time.monotonic() + left_s
        self._bar.update(self._task, completed=done, description=words, ends=ends)
        due = progress.elapsed_s >= self._next_line_s or progress.stage != self._stage
        if due and not self._console.is_terminal:
            if left_s is not None:
                words += f" ({done:.0%}, about {left_s:.0f} s left)"
            self._console.print(words, soft_wrap=True)
            self._next_line_s = progress.elapsed_s + _LINE_EVERY_S
            self._stage = progress.stage


def _in_words(progress: Progress) -> str:
    parts = [f"{progress.stage}: {progress.done} done"]
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.best is not None:
        parts.append(f"best {text.number(progress.best.median_us, 1)} us")
    return ", ".join(parts)
