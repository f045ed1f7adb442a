"""The section of searches: how the best time fell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tunefa.experiments import figure
from tunefa.experiments.table import NO_VALUE, Table, number
from tunefa.report.content import JOURNALS, Content
from tunefa.report.part import Block, Part, Plot, Section, plain
from tunefa.report.search import KernelTrials, Search, Step

NO_JOURNALS = "There are no journals of searches to show: `tunefa search` writes them."
_PANELS = ("configs tried", "seconds since the search began")
HEAD = ("kernel", "configs tried", "failed", "first time\nus", "best time\nus", "found as number",
        "found after\ns")  # fmt: skip


def section(content: Content) -> Section:
    """Returns a plot and a table for each search."""
    return Section(
        name="convergence",
        title="Convergence",
        about="The best time so far of each kernel, over the configs that the search has tried. It "
        "is the time of the screening; the race afterwards times the best configs again.",
        parts=[Part(f"{each.workload}", _blocks(each)) for each in content.searches],
        empty=NO_JOURNALS,
        remarks=content.remarks.get(JOURNALS, ()),
    )


def _blocks(search: Search) -> list[Block]:
    blocks: list[Block] = [f"{search.where}. Journal: {search.journal}."]
    with_steps = [each for each in search.kernels if each.steps]
    if with_steps:
        by_seconds = is_timed(with_steps)
        more = "" if by_seconds else " This journal does not say the seconds."
        blocks.append(
            Plot(
                partial(draw, with_steps, search.objective),
                f"Best {search.objective} time so far of {_names(with_steps)}, by configs tried"
                + (" and by seconds" if by_seconds else ""),
                f"Each step is a config that was faster than all before it.{more}",
                (9.0, 3.4) if by_seconds else (6.0, 3.2),
            )
        )
    elif search.kernels:
        blocks.append("No config of this search has a time.")
    else:
        blocks.append("This search has no trials.")
    if search.kernels:
        rows = [_row(each) for each in search.kernels]
        blocks.append(Table(f"Trials, {search.objective}", HEAD, rows, words=frozenset({"kernel"})))
    return blocks


def _names(kernels: Sequence[KernelTrials]) -> str:
    return ", ".join(each.kernel for each in kernels)


def _row(kernel: KernelTrials) -> list[str]:
    counts = [kernel.kernel, number(kernel.trials), number(kernel.failed)]
    best = best_step(kernel)
    if best is None:
        return [*counts, *[NO_VALUE] * (len(HEAD) - len(counts))]
    return [
        *counts,
        number(kernel.steps[0].best_us, 1),
        number(best.best_us, 1),
        number(best.evaluation),
        number(best.seconds, 1),
    ]


def best_step(kernel: KernelTrials) -> Step | None:
    """The trial with the best time; None if none has a time."""
    return min(kernel.steps, key=lambda step: (step.best_us, step.evaluation), default=None)


def is_timed(kernels: Sequence[KernelTrials]) -> bool:
    """Whether the seconds of all steps are known."""
    return all(step.seconds is not None for kernel in kernels for step in kernel.steps)


def draw(kernels: Sequence[KernelTrials], objective: str, canvas: Any) -> None:
    """Draws the best time so far: a panel by evaluation, and one by seconds if they are known."""
    timed = is_timed(kernels)
    shared: Any = None
    for place, label in enumerate(_PANELS[: 1 + timed], start=1):
        axes = shared = canvas.add_subplot(1, 1 + timed, place, sharey=shared)
        for position, kernel in enumerate(kernels):
            colour = figure.COLOURS[position % len(figure.COLOURS)]
            along = [step.evaluation if place == 1 else step.seconds for step in kernel.steps]
            times = [step.best_us for step in kernel.steps]
            axes.step(along, times, "o-", where="post", color=colour, markersize=3,
                      label=plain(kernel.kernel))  # fmt: skip
        axes.set(xlabel=label, yscale="log")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        _widened(axes)
        axes.xaxis.get_major_locator().set_params(integer=place == 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,g}")
        if place == 1:
            axes.set_ylabel(f"best {objective} time, us")
    canvas.legend(*shared.get_legend_handles_labels(), loc="outside upper center", ncols=2)


def _widened(axes: Any) -> None:
    """Gives the axis of times ticks even where they span less than a factor of ten."""
    low, high = axes.get_ylim()
    if high / low < 10:
        axes.set_yscale("linear")
        axes.set_ylim(bottom=min(low, 0.98 * high))
