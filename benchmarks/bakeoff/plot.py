"""The plot of docs/search.md: how many runs are within 2 % after how many evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def draw(counts: Mapping[str, Sequence[float]], limit: int, path: Path) -> None:
    """One line per strategy, best first; `counts` are its runs' evaluations, infinite for never."""
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    colours = pyplot.get_cmap("tab10")
    for place, (name, values) in enumerate(counts.items()):
        reached = sorted(value for value in values if not math.isinf(value))
        steps = [(place + 1) / len(values) for place in range(len(reached))]
        last = steps[-1] if steps else 0.0
        axes.step(
            [1, *reached, limit],
            [0, *steps, last],
            where="post",
            label=name,
            color=colours(place % 10),
            linestyle="--" if " " in name else "-",
            linewidth=2.5 if name == "auto" else 1.4,
        )
    axes.axvline(25, color="0.7", linewidth=0.8)
    axes.set(
        xscale="log",
        xlim=(1, limit),
        ylim=(0, 1),
        xlabel="evaluations",
        ylabel="runs within 2 % of the best",
    )
    ticks = [1, 2, 5, 10, 25, 50, 100, 200, limit]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(color="0.92")
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
