"""The memory of an NPU that square tiles need: a published formula beside Huawei's compiler."""

from __future__ import annotations

from typing import Any

from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.experiments import figure
from tunefa.experiments.document import Document, Row
from tunefa.experiments.table import NO_VALUE, Table, number
from tunefa.measure import square_tiles
from tunefa.measure.square_tiles import TENSORS
from tunefa.spec import kernel as kernels
from tunefa.spec.arch_catalog import npu
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import DTYPES, Workload

KERNEL = "attention_fwd_ascend"
MEMORIES = ("ub", "l1", "l0c")
_HALF = (
    "The figures often printed beside that formula, 20.5, 41.0, 81.9 and 163.8 kB at head_dim 64, "
    "are half of what it gives. Q, K and V are never in the UB, but scores and output in fp32 are."
)
_COLOURS = {"formula": figure.THEORY, **dict(zip(MEMORIES, figure.COLOURS, strict=False))}


def rows(workload: Workload, target: Target) -> list[Row]:
    """Compiles tiles of 64 x 64 to 512 x 512; times are modelled. Raises TunefaError where there is
    no compiler for the chip."""
    arch, kernel = npu(target.arch), kernels.load(KERNEL)
    if why := languages.without_compiler([kernel], arch).get(kernel.name):
        raise TunefaError(why)
    case = Case(kernel, workload, target)
    if why := case.why_not():
        raise TunefaError(f"{KERNEL} does not serve {workload}: {why}")
    common = {"workload": str(workload), "chip": arch.compiler_target}
    available = {f"{name}_available_bytes": arch.capacities[name] for name in MEMORIES}
    return [{**common, **tile.to_data(), **available} for tile in square_tiles.table(case)]


def of(document: Document) -> list[Row]:
    """The rows of square tiles in a document."""
    return [row for row in document.rows if "formula_bytes" in row]


def tables(found: list[Row]) -> list[Table]:
    """A table for each workload: the formula, and what the compiler plans."""
    head = ("tile", "loops", "formula\nB", "UB\nB", "L1\nB", "L0C\nB", "steps", "us",
            "the compiler")  # fmt: skip
    made = []
    for workload in dict.fromkeys(row["workload"] for row in found):
        own = [row for row in found if row["workload"] == workload]
        lines = [
            [
                str(row["tile"]),
                str(row["loops"]),
                number(row["formula_bytes"]),
                *(number(row[f"{name}_bytes"]) for name in MEMORIES),
                number(row["steps"]),
                number(row["modelled_us"]),
                "fits" if row["fits"] else _over(row),
            ]
            for row in own
        ]
        sizes = [number(own[0][f"{name}_available_bytes"]) for name in MEMORIES]
        lines.append(["of", "", NO_VALUE, *sizes, "", "", ""])
        words = frozenset({"the compiler"})
        title = f"{workload} on {own[0]['chip']}"
        made.append(Table(title, head, lines, _remarks(Workload.parse(workload)), words))
    return made


def _remarks(workload: Workload) -> list[str]:
    return [
        "loops: seqlen / tile, as published.",
        f"formula: {DTYPES[workload.dtype]} bytes x {TENSORS} tensors x tile x "
        f"{workload.head_dim} in the UB, as published.",
        "UB, L1, L0C: bytes that the compiler plans in each memory, or would need.",
        "steps: steps of the busiest core. us: time by a latency model; nothing ran on an NPU.",
        _HALF,
    ]


def draw(found: list[Row], canvas: Any) -> None:
    """Draws a bar for the formula and for each memory, and a line for the size of each memory; for
    several workloads those of the first."""
    own = [row for row in found if row["workload"] == found[0]["workload"]]
    axes = canvas.add_subplot()
    for place, name in enumerate(("formula", *MEMORIES)):
        available = own[0][f"{'ub' if name == 'formula' else name}_available_bytes"]
        sizes = [row[f"{name}_bytes"] or 0 for row in own]
        where = [tile + (place - 1.5) * 0.2 for tile in range(len(own))]
        over = ["//" if size > available else "" for size in sizes]
        by_formula = "UB, the published formula"
        label = by_formula if name == "formula" else f"{name.upper()}, the compiler"
        axes.bar(where, [size / 1024 for size in sizes], 0.18, label=label, hatch=over,
                 color=_COLOURS[name], edgecolor="white")  # fmt: skip
    for name in MEMORIES:
        kib = own[0][f"{name}_available_bytes"] / 1024
        axes.axhline(kib, color=_COLOURS[name], linewidth=1, linestyle="--")
        axes.annotate(
            f"{name.upper()} {kib:.0f} KiB", (1, kib), (3, 0), va="center", color=_COLOURS[name],
            xycoords=("axes fraction", "data"), textcoords="offset points",
        )  # fmt: skip
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("KiB (hatched: more than the memory has)")
    names = [f"{row['tile']} x {row['tile']}\n{_fits(row)}" for row in own]
    axes.set_xticks(range(len(own)), names)
    head_dim = Workload.parse(own[0]["workload"]).head_dim
    axes.set_title(f"{own[0]['chip']}, head_dim {head_dim}: memory of a tile")
    axes.legend(loc="upper left")


def _fits(row: Row) -> str:
    return "fits" if row["fits"] else "overflow"


def _over(row: Row) -> str:
    """The memories that overflow, or else the compiler's message."""
    over = [
        name.upper()
        for name in MEMORIES
        if (row[f"{name}_bytes"] or 0) > row[f"{name}_available_bytes"]
    ]
    return f"{', '.join(over)} overflow" if over else str(row["reason"])
