"""Time and error of one attention problem in each dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunefa.experiments import figure, modelled, rivals
from tunefa.experiments.document import Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.experiments.table import NO_VALUE, Table, number
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

ORDER = ("fp32", "fp16", "bf16", "e4m3")


def measured(workload: Workload, settings: Settings) -> list[Row]:
    """Times tunefa and scaled_dot_product_attention, and takes their errors against fp64."""
    return [rivals.timed(workload, ("sdpa",), settings)]


def modelled_rows(workload: Workload, target: Target) -> list[Row]:
    """Computes the times; errors are not modelled."""
    mine = modelled.ours(workload, target)
    return [
        {
            "workload": str(workload),
            "tunefa_us": mine.time_us,
            "kernel": mine.choice.kernel,
            "sdpa_us": modelled.flash_attention_2_us(workload, target),
        }
    ]


def tables(document: Document) -> list[Table]:
    """One table: times, TFLOP/s and errors by dtype."""
    head = ("dtype", "tunefa\nus", "TFLOP/s", "SDPA\nus", "tunefa's\nerror",
            "tunefa's\nworst row", "SDPA's\nerror")  # fmt: skip
    lines = []
    for row in _rows(document):
        workload = Workload.parse(row["workload"])
        own = row.get("tunefa_us")
        lines.append(
            [
                workload.dtype,
                number(own, 1),
                number(workload.flops / own / 1e6 if own else None, 1),
                number(row.get("sdpa_us"), 1),
                *(_error(row.get(f"tunefa_{name}")) for name in ("error", "worst_row")),
                _error(row.get("sdpa_error")),
            ]
        )
    title = _title(document)
    return [Table(title, head, lines, _remarks(document), frozenset({"dtype"}))]


def draw(document: Document, canvas: Any) -> None:
    """Draws the speed by dtype and, where it was measured, the error."""
    rows = _rows(document)
    dtypes = [Workload.parse(row["workload"]).dtype for row in rows]
    errors = any(row.get("tunefa_error") for row in rows)
    axes = canvas.add_subplot(1, 2 if errors else 1, 1)
    for place, (name, colour) in enumerate(zip(("tunefa", "sdpa"), figure.COLOURS, strict=False)):
        rates = [
            Workload.parse(row["workload"]).flops / us / 1e6
            if (us := row.get(f"{name}_us"))
            else float("nan")
            for row in rows
        ]
        where = [i + (place - 0.5) * 0.4 for i in range(len(rows))]
        bars = axes.bar(where, rates, 0.36, color=colour, label=rivals.TITLES[name])
        axes.bar_label(bars, [f"{rate:.0f}" if rate == rate else "" for rate in rates])
    axes.grid(axis="x", visible=False)
    axes.set_xticks(range(len(rows)), dtypes)
    axes.set_xlim(-0.5, len(rows) - 0.5)  # also where the last bar is missing
    axes.set(ylabel="TFLOP/s", title=_title(document))
    axes.legend(loc="upper left")
    if errors:
        axes = canvas.add_subplot(1, 2, 2)
        for name, colour in zip(("tunefa", "sdpa"), figure.COLOURS, strict=False):
            found = [row.get(f"{name}_error") or float("nan") for row in rows]
            # SDPA's may lie on tunefa's.
            marker = {"fillstyle": "none", "markersize": 11} if name == "sdpa" else {}
            axes.plot(dtypes, found, "o", color=colour, label=rivals.TITLES[name], **marker)
        axes.set_yscale("log")
        axes.set(title="relative error against fp64")
        axes.legend()


def _rows(document: Document) -> list[Row]:
    """The rows that did not fail, from the widest dtype to the narrowest."""
    right = [row for row in document.rows if "error" not in row]
    return sorted(right, key=lambda row: ORDER.index(Workload.parse(row["workload"]).dtype))


def _title(document: Document) -> str:
    rows = _rows(document)
    if not rows:
        return "no point succeeded"
    each = Workload.parse(rows[0]["workload"])
    mask = "causal" if each.causal else "full"
    lengths = f"S {each.seqlen_q:,}"
    return f"batch {each.batch}, {each.heads} heads, {lengths}, head_dim {each.head_dim}, {mask}"


def _error(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.1e}"


def _remarks(document: Document) -> list[str]:
    said = [
        "Errors are those of the output against fp64 attention of the same inputs: the norm of the "
        "difference over the norm of the result, and the same of the worst row alone.",
        "fp32: tunefa computes each product as three tf32 products, which keeps nearly all bits of "
        "fp32; one tf32 product alone has the 10 bits of fp16.",
        "e4m3 doubles the rate of the tensor cores, but not that of exp2 and of the rest of the "
        "softmax.",
    ]
    if document.is_measured:
        said += rivals.defaults(document.rows)
    else:
        said.append("Modelled: SDPA is taken to run FlashAttention-2; errors are not modelled.")
    return [*said, *rivals.left_out(document.rows), *rivals.failed(document.rows)]


EXPERIMENT = Experiment(
    name="dtypes",
    question="What does each dtype give in speed, and cost in accuracy?",
    points=tuple(f"b4_h16_q4096_d128_{dtype}_causal" for dtype in ORDER),
    measured=measured,
    modelled=modelled_rows,
    tables=tables,
    draw=draw,
)
