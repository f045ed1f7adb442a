"""The report of `tunefa bench tiles`: a table of tiles, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tunefa.cli.reports import text
from tunefa.measure.square_tiles import TENSORS, Tile
from tunefa.spec.arch import NpuArch
from tunefa.spec.workload import DTYPES, Workload

_HALF = (
    "The figures often printed beside that formula, 20.5, 41.0, 81.9 and 163.8 kB at head_dim 64, "
    "are half of what it gives. Q, K and V are never in the UB, but scores and output in fp32 are."
)
_COLOURS = {"formula": "#9a9a9a", "UB": "#2a6fbb", "L1": "#3a9a5b", "L0C": "#c9702b"}


def show(tiles: Sequence[Tile], workload: Workload, arch: NpuArch, out: Console) -> None:
    """Prints the table, and how the formula compares."""
    out.print(text.heading(f"{workload} on {arch.compiler_target} ({arch.name})"))
    figures = ("tile", "loops", "formula\nB", "UB\nB", "L1\nB", "L0C\nB", "steps", "us")
    rows = text.table(*figures, "the compiler", right=figures)
    for tile in tiles:
        rows.add_row(
            str(tile.tile),
            str(tile.loops),
            text.number(tile.formula_bytes),
            text.number(tile.ub_bytes),
            text.number(tile.l1_bytes),
            text.number(tile.l0c_bytes),
            text.number(tile.steps),
            text.number(tile.modelled_us),
            "fits" if tile.fits else _over(tile, arch),
        )
    available = arch.capacities
    rows.add_row("of", "", text.NO_VALUE, *(text.number(available[m]) for m in ("ub", "l1", "l0c")))
    out.print(rows)
    size = DTYPES[workload.dtype]
    out.print(
        text.facts(
            {
                "loops": "seqlen / tile, as published",
                "formula": f"{size} bytes x {TENSORS} tensors x tile x {workload.head_dim} in the "
                "UB, as published",
                "UB, L1, L0C": "bytes that the compiler plans in each memory, or would need",
                "steps": "steps of the busiest core",
                "us": "time by a latency model; nothing ran on an NPU",
            }
        )
    )
    out.print(_HALF)


def plot(tiles: Sequence[Tile], workload: Workload, arch: NpuArch, path: Path) -> None:
    """Draws a bar for the formula and for each memory, and a line for the size of each memory.

    Needs matplotlib: raises ImportError without it, and OSError where the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_bars(axes, tiles, arch)
    _draw_limits(axes, arch)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("KiB (hatched: more than the memory has)")
    axes.set_xticks(range(len(tiles)))
    axes.set_xticklabels(
        [f"{t.tile} x {t.tile}\n{'fits' if t.fits else 'overflow'}" for t in tiles]
    )
    axes.set_title(
        f"{arch.compiler_target}, head_dim {workload.head_dim}: memory of a tile", fontsize=11
    )
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_bars(axes: Any, tiles: Sequence[Tile], arch: NpuArch) -> None:
    """Draws four bars for each tile: the formula's UB, and the compiler's UB, L1 and L0C."""
    bars: dict[str, list[int | None]] = {
        "formula": [tile.formula_bytes for tile in tiles],
        "UB": [tile.ub_bytes for tile in tiles],
        "L1": [tile.l1_bytes for tile in tiles],
        "L0C": [tile.l0c_bytes for tile in tiles],
    }
    for place, (name, sizes) in enumerate(bars.items()):
        available = arch.capacities.get(name.lower(), arch.ub_bytes)
        where = [i + (place - 1.5) * 0.2 for i in range(len(tiles))]
        kib = [(size or 0) / 1024 for size in sizes]
        over = ["//" if (size or 0) > available else "" for size in sizes]
        label = "UB, the published formula" if name == "formula" else f"{name}, the compiler"
        axes.bar(where, kib, 0.18, label=label, color=_COLOURS[name], hatch=over, edgecolor="white")


def _draw_limits(axes: Any, arch: NpuArch) -> None:
    """Draws a dashed line for the size of each memory."""
    for name, available in (("UB", arch.ub_bytes), ("L1", arch.l1_bytes), ("L0C", arch.l0c_bytes)):
        axes.axhline(available / 1024, color=_COLOURS[name], linewidth=1, linestyle="--")
        axes.annotate(
            f"{name} {available // 1024} KiB", (1, available / 1024), (3, 0), va="center",
            color=_COLOURS[name], xycoords=("axes fraction", "data"), textcoords="offset points",
        )  # fmt: skip


def _over(tile: Tile, arch: NpuArch) -> str:
    """The memories that overflow, or else the compiler's message."""
    needed = {"ub": tile.ub_bytes, "l1": tile.l1_bytes, "l0c": tile.l0c_bytes}
    over = [name.upper() for name, size in needed.items() if (size or 0) > arch.capacities[name]]
    return f"{', '.join(over)} overflow" if over else tile.reason
