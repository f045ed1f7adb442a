"""The section of heat maps: the best times over two sizes of tiles."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tunefa.experiments.table import number
from tunefa.report.content import Content
from tunefa.report.convergence import NO_JOURNALS
from tunefa.report.part import Block, Part, Plot, Section, plain
from tunefa.report.search import LEAST_CELLS, HeatMap, KernelTrials, Search, sort_key

_BLACK, _WHITE = "#000000", "#ffffff"
"""Figures in cells stand on the cell's colour, in a light and a dark page alike."""


def section(content: Content) -> Section:
    """Returns the heat maps of each search, one for each kernel with enough trials."""
    found = [(each, [k for k in each.kernels if k.heat_map]) for each in content.searches]
    parts = [
        Part(str(search.workload), [search.where + ".", *(_plot(search, k) for k in kernels)])
        for search, kernels in found
        if kernels
    ]
    few = f"No search on this page tried {LEAST_CELLS} pairs of tile sizes of a kernel."
    without = sum(not kernels for _, kernels in found)
    remarks = [f"{without} of {len(found)} searches tried too few pairs of tile sizes for one."]
    return Section(
        name="heat-maps",
        title="Heat maps",
        about="The best time in us among all configs with the same two values. Dark cells are "
        "fast, and the frame marks the best one. A search tries few configs where it expects "
        "nothing, so a cell need not hold the best config that there is.",
        parts=parts,
        empty=few if content.searches else NO_JOURNALS,
        remarks=remarks if parts and without else (),
    )


def _plot(search: Search, kernel: KernelTrials) -> Block:
    held = kernel.heat_map
    assert held is not None
    rows, columns = axes_of(held)
    size = (max(4.0, min(9.0, 1.8 + 0.8 * len(columns))), 1.4 + 0.42 * len(rows))
    return Plot(
        partial(draw, held),
        f"Best {search.objective} times of {kernel.kernel} over {held.row_name} and "
        f"{held.column_name}",
        f"{kernel.kernel}: {search.objective} times in us; ✕ where every config failed, and "
        "empty where none was tried.",
        size,
    )


def axes_of(held: HeatMap) -> tuple[list[Any], list[Any]]:
    """Returns the values of the rows and of the columns, in ascending order."""
    rows = sorted({cell.row for cell in held.cells}, key=sort_key)
    return rows, sorted({cell.column for cell in held.cells}, key=sort_key)


def draw(held: HeatMap, canvas: Any) -> None:
    """Draws the times of the cells, on a logarithmic scale of colours."""
    import matplotlib
    from matplotlib.colors import LogNorm

    rows, columns = axes_of(held)
    times = {(c.row, c.column): c.best_us for c in held.cells if c.best_us is not None}
    fastest = min(times.values(), default=1.0)
    slowest = max([fastest * 1.01, *times.values()])
    scale, colours = LogNorm(fastest, slowest), matplotlib.colormaps["viridis"]
    axes = canvas.add_subplot()
    grid = [[times.get((row, column), math.nan) for column in columns] for row in rows]
    axes.pcolormesh(grid, cmap=colours, norm=scale, edgecolors=axes.get_facecolor(), linewidth=1)
    for cell in held.cells:
        x, y = columns.index(cell.column) + 0.5, rows.index(cell.row) + 0.5
        dark = cell.best_us is not None and scale(cell.best_us) < 0.6
        text = "✕" if cell.best_us is None else number(cell.best_us, 0 if fastest >= 100 else 1)
        style = {"color": _WHITE if dark else _BLACK} if cell.best_us is not None else {}
        axes.text(x, y, text, ha="center", va="center", fontsize=8, **style)
        if cell.best_us == fastest:
            axes.plot(
                [x - 0.5, x + 0.5, x + 0.5, x - 0.5, x - 0.5],
                [y - 0.5, y - 0.5, y + 0.5, y + 0.5, y - 0.5],
                color="#d55e00",
                linewidth=2.5,
                clip_on=False,
            )
    names = ([plain(str(value)) for value in values] for values in (columns, rows))
    axes.set_xticks([place + 0.5 for place in range(len(columns))], next(names))
    axes.set_yticks([place + 0.5 for place in range(len(rows))], next(names))
    axes.set(xlabel=plain(held.column_name), ylabel=plain(held.row_name))
    axes.grid(False)
