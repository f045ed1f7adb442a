"""The cost of a tile: time and resources over BLOCK_M x BLOCK_N, and why other tiles do not fit.

On NPUs the memory of square tiles is compared with an often published formula: see `npu_tiles`.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.experiments import figure, npu_tiles, rivals, tile_grid
from tunefa.experiments.document import Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.experiments.table import NO_VALUE, Table, number
from tunefa.experiments.titles import title
from tunefa.measure.predicted import Predicted
from tunefa.spec.arch import NpuArch
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST_REASON, _MOST_COLUMNS, _MOST_LINES = 110, 3, 10
_MOST_MAPS, _WRAPPED = 2, 70
_EMPTY = "#f4f4f4"


def measured(workload: Workload, settings: Settings) -> list[Row]:
    """Checks and times the best config of each tile on this machine's GPU, one after the other.

    The time is the median of a few launches with a cold L2, without a race.
    """
    from tunefa.experiments import here
    from tunefa.measure.measured import gpu_objective

    target = here.target()
    if isinstance(target.arch, NpuArch):
        return npu_tiles.rows(workload, target)
    case = tile_grid.case_of(workload, target)
    return tile_grid.cells(case, gpu_objective(settings.mode))


def modelled(workload: Workload, target: Target) -> list[Row]:
    """Compiles the best config of each tile, and computes its time."""
    if isinstance(target.arch, NpuArch):
        return npu_tiles.rows(workload, target)
    case = tile_grid.case_of(workload, target)
    can_compile = tile_grid.without_compiler(case) is None
    return tile_grid.cells(case, Predicted if can_compile else None)


def tables(document: Document) -> list[Table]:
    """For each workload the times, and the resources of the tiles that fit, the fastest first."""
    made = [table for rows in _groups(document) for table in _tables(rows)]
    made += npu_tiles.tables(npu_tiles.of(document))
    if made:
        last = [*made[-1].remarks, *rivals.failed(document.rows)]
        made[-1] = replace(made[-1], remarks=last)
    return made


def draw(document: Document, canvas: Any) -> None:
    """Draws a heat map for each workload, two at most; for NPUs the bars of `npu_tiles`."""
    squares = npu_tiles.of(document)
    if squares:
        npu_tiles.draw(squares, canvas)
        return
    groups = _groups(document)
    shown = groups[:_MOST_MAPS]
    for place, rows in enumerate(shown, start=1):
        axes = canvas.add_subplot(1, len(shown), place)
        _heat_map(rows, axes)
        workload = title(Workload.parse(rows[0]["workload"]), "\n" if len(shown) > 1 else ", ")
        more = f" (of {len(groups)} workloads)" if len(groups) > len(shown) else ""
        axes.set_title(f"{workload}\n{rows[0]['kernel']}{more}")


def _groups(document: Document) -> list[list[Row]]:
    """The cells of each workload."""
    found: dict[str, list[Row]] = {}
    for row in document.rows:
        if "block_m" in row:
            found.setdefault(row["workload"], []).append(row)
    return list(found.values())


def _tables(rows: list[Row]) -> list[Table]:
    name = f"{title(Workload.parse(rows[0]['workload']))}: {rows[0]['kernel']}"
    return [_times(name, rows), replace(_fitting(name, rows), remarks=_remarks(rows))]


def _times(name: str, rows: list[Row]) -> Table:
    """The grid: times in us, and letters for reasons."""
    columns, letters, (sides_m, sides_n) = _columns(rows), _reasons(rows), rows[0]["sides"]
    cells = {(row["block_m"], row["block_n"]): row for row in rows}
    head = (sides_m, *(f"{sides_n}\n{n}" for n in columns))
    lines = [
        [number(m), *(_cell(cells.get((m, n)), letters) for n in columns)]
        for m in sorted({row["block_m"] for row in rows})
    ]
    said = [f"{letter}: {reason}." for reason, letter in letters.items()]
    if not letters:
        said = ["All tiles fit."]
    return Table(f"{name}, us", head, lines, said)


def _cell(row: Row | None, letters: dict[str, str]) -> str:
    if row is None:
        return NO_VALUE
    return number(row["time_us"], 1) if row["outcome"] == "ok" else letters[_reason(row)]


def _fitting(name: str, rows: list[Row]) -> Table:
    """The tiles that fit, with parameters that differ: as columns if they are few, else words."""
    varied = _varied(rows)
    columns = varied if len(varied) <= _MOST_COLUMNS else ["parameters"]
    head = ("tile", "us", "smem\nB", "registers", "spilled\nB", *columns)
    lines = []
    for row in _fits(rows)[:_MOST_LINES]:
        chosen = [str(row["config"][name]) for name in varied]
        if columns is not varied:
            chosen = [" ".join(f"{k}={v}" for k, v in zip(varied, chosen, strict=True))]
        needs = _need(row, "smem_bytes"), _need(row, "registers"), number(row["spill_bytes"])
        tile = f"{row['block_m']} x {row['block_n']}"
        lines.append([tile, number(row["time_us"], 1), *needs, *chosen])
    return Table(f"{name}: the fastest", head, lines, words=frozenset({"tile", "parameters"}))


def _need(row: Row, name: str) -> str:
    """The value that the compiler reports, or a lower bound."""
    value = number(row[name])
    return value if row["is_compiled"] else f"≥ {value}"


def _remarks(rows: list[Row]) -> list[str]:
    fits = _fits(rows)
    said = [
        "A cell holds the faster of two configs that the model expects to be the fastest with this "
        "tile."
    ]
    if len(fits) > _MOST_LINES:
        said.append(f"{len(fits) - _MOST_LINES} slower cells are not listed.")
    same = {k: v for row in fits for k, v in row["config"].items() if k not in _varied(rows)}
    same = {name: value for name, value in same.items() if name not in rows[0]["sides"]}
    if same:
        said.append(f"In all of them {' '.join(f'{k}={v}' for k, v in same.items())}.")
    if fits:
        best, worst = fits[0], fits[-1]
        said.append(
            f"{best['block_m']} x {best['block_n']} is the fastest, and {worst['block_m']} x "
            f"{worst['block_n']} takes {worst['time_us'] / best['time_us']:.1f} times as long."
        )
    left = [row for row in fits if not row["is_compiled"]]
    if left:
        said.append(
            f"{len(left)} of {len(fits)} cells were not compiled: their resources are lower "
            f"bounds (≥), and their times the model's."
        )
    return said


def _heat_map(rows: list[Row], axes: Any) -> None:
    """Draws the cells of one workload: darker is slower, hatched does not run."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    columns, letters = _columns(rows), _reasons(rows)
    lines = sorted({row["block_m"] for row in rows})
    known = [row["time_us"] for row in _fits(rows)]
    scale = LogNorm(min(known), max(max(known), 2 * min(known))) if known else None
    colours = colormaps["cividis_r"]
    for row in rows:
        x, y = columns.index(row["block_n"]), lines.index(row["block_m"])
        runs = row["outcome"] == "ok" and scale is not None
        shade = scale(row["time_us"]) if runs and scale else 0.0
        look: dict[str, Any] = {
            "facecolor": colours(shade),
            "edgecolor": "#ffffff",
            "linewidth": 1.5,
        }
        if not runs:
            look = {"facecolor": _EMPTY, "edgecolor": figure.THEORY, "hatch": "///"}
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **look))
        words = _words(row) if runs else letters[_reason(row)]
        axes.text(
            x, y, words, ha="center", va="center", fontsize=9 if runs else 12,
            color="#ffffff" if shade > 0.55 else "#16191d",
            bbox=None if runs else {"facecolor": _EMPTY, "edgecolor": "none", "pad": 2},
        )  # fmt: skip
    _frame(rows, axes, columns, lines)


def _frame(rows: list[Row], axes: Any, columns: list[int], lines: list[int]) -> None:
    """The axes around the cells, and the reasons below."""
    sides_m, sides_n = rows[0]["sides"]
    axes.set_xticks(range(len(columns)), map(str, columns))
    axes.set_yticks(range(len(lines)), map(str, lines))
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(-0.5, len(lines) - 0.5)
    axes.grid(False)
    axes.set_ylabel(sides_m)
    reasons = [f"{letter}: {reason}" for reason, letter in _reasons(rows).items()]
    reasons = [line for reason in reasons for line in textwrap.wrap(reason, _WRAPPED)]
    legend = ["us, shared memory, spills; hatched: does not run", *reasons]
    axes.set_xlabel("\n".join([sides_n, *legend]), fontsize=8 if len(legend) > 4 else 9)


def _words(row: Row) -> str:
    """The text of a cell: its time and what it needs."""
    lines = [number(row["time_us"], 0 if row["time_us"] >= 100 else 1)]
    if row["smem_bytes"] is not None:
        lines.append(f"{row['smem_bytes'] / 1024:.0f} KiB")
    if row["spill_bytes"]:
        lines[-1] += ", spills"
    return "\n".join(lines)


def _varied(rows: list[Row]) -> list[str]:
    """The parameters, beside the sides of the tile, in which the cells differ."""
    configs = [row["config"] for row in _fits(rows)]
    names = dict.fromkeys(name for config in configs for name in config)
    return [
        name
        for name in names
        if name not in rows[0]["sides"] and len({config[name] for config in configs}) > 1
    ]


def _columns(rows: list[Row]) -> list[int]:
    return sorted({row["block_n"] for row in rows})


def _fits(rows: list[Row]) -> list[Row]:
    """The cells that run, the fastest first."""
    timed = [row for row in rows if row["outcome"] == "ok" and row["time_us"]]
    return sorted(timed, key=lambda row: float(row["time_us"]))


def _reason(row: Row) -> str:
    """The reason that a cell does not run: a rule, or what the compiler or the check said."""
    said = " ".join(str(row["reason"]).split()) or row["outcome"]
    words = said if row["outcome"] == "refused" else f"{row['outcome'].replace('_', ' ')}: {said}"
    return words if len(words) <= _MOST_REASON else words[: _MOST_REASON - 1] + "…"


def _reasons(rows: list[Row]) -> dict[str, str]:
    """A letter for each reason."""
    found = dict.fromkeys(_reason(row) for row in rows if row["outcome"] != "ok")
    return {reason: _LETTERS[place % 26] for place, reason in enumerate(found)}


EXPERIMENT = Experiment(
    name="tiles",
    question="What does each tile cost, and which do not fit?",
    points=("h32_kv8_q8192_d64_fp16_full",),
    measured=measured,
    modelled=modelled,
    tables=tables,
    draw=draw,
)
