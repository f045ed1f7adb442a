"""The report of `tunefa learn`: what each kernel's trials taught, and where that is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TaskProgressColumn, TimeRemainingColumn
from rich.text import Text

from tunefa.cli.reports import text
from tunefa.cli.reports.bar import OnStderr
from tunefa.costmodel.lesson import Lesson
from tunefa.costmodel.training_rows import TrainingRows

Written = Mapping[tuple[str, str], Path]
"""By kernel and arch, the file that a model was written to."""


class Reporter(OnStderr):
    """Shows how many fits are done. A context manager."""

    def __init__(self, total: int) -> None:
        super().__init__("learning", total, TaskProgressColumn(), TimeRemainingColumn())

    def __call__(self) -> None:
        """Counts one fit."""
        self._bar.advance(self._task)


def to_data(lessons: Sequence[Lesson], rows: TrainingRows, written: Written) -> dict[str, Any]:
    """Plain data for `--json`. Errors are those of log(measured / predicted)."""
    return {
        "lessons": [
            {
                "kernel": each.kernel,
                "arch": each.arch,
                "devices": list(each.devices),
                "workloads": each.workloads,
                "new_workloads": each.new_workloads,
                "trials": each.trials,
                "failures": each.failures,
                "error_before": each.before,
                "error_after": each.after,
                "better": each.model is not None,
                "why_not": each.why_not,
                "model": each.model.id if each.model else None,
                "file": str(path) if (path := written.get((each.kernel, each.arch))) else None,
            }
            for each in lessons
        ],
        "left_out": dict(rows.left_out),
        "unread": list(rows.unread),
    }


def show(lessons: Sequence[Lesson], rows: TrainingRows, written: Written) -> None:
    """Prints a row for each kernel and arch, then what was left out and written."""
    out = text.console()
    figures = ("workloads", "trials", "error before", "after")
    table = text.table("kernel, and where it ran", *figures, right=figures)
    for each in lessons:
        where = f"{each.arch}: {', '.join(each.devices)}"
        table.add_row(
            Text.assemble(each.kernel, (f"\n{where}", "dim")),
            text.number(each.workloads),
            text.number(each.trials),
            _percent(each.before),
            _percent(each.after),
        )
    out.print(table)
    out.print()
    _explain(lessons, rows, out)
    for each in lessons:
        path = written.get((each.kernel, each.arch))
        if path is not None:
            out.print(f"{each.kernel}, {each.arch}: written to {path}", soft_wrap=True)
        elif each.model is not None:
            out.print(f"{each.kernel}, {each.arch}: would be kept")
        else:
            out.print(f"{each.kernel}, {each.arch}: not kept: {each.why_not}")


def _explain(lessons: Sequence[Lesson], rows: TrainingRows, out: Console) -> None:
    """Prints what the errors are, and what was left out."""
    if any(each.before is not None for each in lessons):
        out.print(
            "Errors are those of predicted times, for configs within 30 % of the best: before, by "
            "the model that tunefa ships; after, on workloads that were held out.",
            style="dim",
        )
    failures = sum(each.failures for each in lessons)
    if failures:
        out.print(f"{text.plural(failures, 'config')} failed and had no time.", style="dim")
    for why, count in rows.left_out.items():
        out.print(f"Left out {text.plural(count, 'trial')}: {why}.", style="dim")


def forgotten(paths: Sequence[Path], *, removed: bool, as_json: bool) -> None:
    """Prints the files of models that are removed, or would be."""
    if as_json:
        text.emit_json({"removed": removed, "files": [str(path) for path in paths]})
        return
    out = text.console()
    for path in paths:
        out.print(f"{'Removed' if removed else 'Would remove'} {path}", soft_wrap=True)
    if not paths:
        out.print("Nothing was learned here: predictions are those of the model that tunefa ships.")


def _percent(error: float | None) -> str:
    """The error of a logarithm as a part of the time: 0.1 is 10.5 %."""
    return text.NO_VALUE if error is None else f"{math.expm1(error):.1%}"
