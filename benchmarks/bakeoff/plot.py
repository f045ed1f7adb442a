"""Draws the plot of docs/search.md: the share of runs within 2 % by the number of evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


@dataclass(frozen=True)
class Line:
    """The runs of one strategy."""

    name: str
    counts: Sequence[float]
    """Evaluations of each run until it was close enough; infinite for never."""
    limit: int
    """Evaluations after which a run was given up."""


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draws a line for each strategy: the share of runs that are close enough, by evaluations."""
    figure, axes = pyplot.subplots(figsize=(9.5, 5), layout="constrained")
    colours = pyplot.get_cmap("tab10")
    limit = max(line.limit for line in lines)
    for place, line in enumerate(lines):
        reached = sorted(count for count in line.counts if not math.isinf(count))
        shares = [(done + 1) / len(line.counts) for done in range(len(reached))]
        axes.step(
            [1, *reached, line.limit],
            [0, *shares, shares[-1] if shares else 0],
            where="post",
            label=line.name,
            color=colours(place % 10),
            linestyle="--" if " " in line.name else "-",
            linewidth=2.5 if line.name == "auto" else 1.4,
        )
    axes.axvline(25, color="0.7", linewidth=0.8)
    axes.set(
        xscale="log",
        xlim=(1, limit),
        ylim=(0, 1.02),
        xlabel="evaluations",
        ylabel="runs within 2 % of the best",
    )
    ticks = [1, 2, 5, 10, 25, 50, 100, 200, limit]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(color="0.92")
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
