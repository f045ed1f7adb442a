"""The speed-up of a fused kernel over attention in PyTorch's operators, as the length grows.

The operators write and read the whole matrix of scores, seqlen_q x seqlen_k for each head; a fused
kernel keeps it on the chip (Dao et al., "FlashAttention", arXiv:2205.14135).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.experiments import figure, modelled, rivals
from tunefa.experiments.document import Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.experiments.table import Table, number, times
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

LENGTHS = (512, 1024, 2048, 4096, 8192)
RIVALS = ("operators", "sdpa")
CLAIMED = (2.7, 8.6)
"""The speed-ups over PyTorch's operators that a write-up about an NPU states for 512 to 8,192."""


def measured(workload: Workload, settings: Settings) -> list[Row]:
    """Times tunefa, the operators and scaled_dot_product_attention on the same tensors."""
    return [rivals.timed(workload, RIVALS, settings)]


def modelled_rows(workload: Workload, target: Target) -> list[Row]:
    """Computes the three times for a chip; that of scaled_dot_product_attention is
    FlashAttention-2's."""
    mine = modelled.ours(workload, target)
    return [
        {
            "workload": str(workload),
            "tunefa_us": mine.time_us,
            "kernel": mine.choice.kernel,
            "operators_us": modelled.operators_us(workload, target),
            "sdpa_us": modelled.flash_attention_2_us(workload, target),
        }
    ]


def tables(document: Document) -> list[Table]:
    """One table for each shape: times, speed-ups and TFLOP/s by length."""
    sdpa = "SDPA" if document.is_measured else "FlashAttention-2"
    head = ("S", "operators\nus", f"{sdpa}\nus", "tunefa\nus", "over\noperators", f"over\n{sdpa}",
            "tunefa\nTFLOP/s")  # fmt: skip
    made = []
    for title, rows in _by_shape(document).items():
        lines = [
            [
                number(Workload.parse(row["workload"]).seqlen_q),
                *(number(row.get(f"{name}_us"), 1) for name in ("operators", "sdpa", "tunefa")),
                *(times(_ratio(row, name)) for name in RIVALS),
                number(_tflops(row), 1),
            ]
            for row in rows
        ]
        made.append(Table(title, head, lines))
    if made:
        made[-1] = replace(made[-1], remarks=_remarks(document))
    return made


def draw(document: Document, canvas: Any) -> None:
    """Draws the speed-ups by length: one panel for each shape."""
    shapes = _by_shape(document)
    for place, (title, rows) in enumerate(shapes.items(), start=1):
        axes = canvas.add_subplot(1, len(shapes), place)
        for rival, colour in zip(RIVALS, figure.COLOURS[1:], strict=False):
            points = [
                (Workload.parse(row["workload"]).seqlen_q, ratio)
                for row in rows
                if (ratio := _ratio(row, rival)) is not None
            ]
            axes.plot(
                *zip(*points, strict=True), "o-", color=colour, label=f"over {rivals.TITLES[rival]}"
            )
        axes.axhspan(*CLAIMED, color=figure.THEORY, alpha=0.15, label="claimed for an NPU")
        axes.axhline(1.0, color=figure.THEORY, linewidth=0.8)
        lengths = [Workload.parse(row["workload"]).seqlen_q for row in rows]
        axes.set_xlim(min(lengths) / 1.2, max(lengths) * 1.2)  # also where no time is known
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.set(xlabel="sequence length", ylabel="speed-up of tunefa", title=title)
        axes.set_ylim(bottom=0)
        axes.legend()


def _by_shape(document: Document) -> dict[str, list[Row]]:
    """The rows of each shape, by what its workloads have in common."""
    found: dict[str, list[Row]] = {}
    for row in document.rows:
        workload = Workload.parse(row["workload"])
        mask = "causal" if workload.causal else "full"
        title = f"batch {workload.batch}, {workload.heads} heads, head_dim {workload.head_dim}, "
        found.setdefault(f"{title}{workload.dtype}, {mask}", []).append(row)
    return found


def _ratio(row: Row, rival: str) -> float | None:
    own, other = row.get("tunefa_us"), row.get(f"{rival}_us")
    return other / own if own and other else None


def _tflops(row: Row) -> float | None:
    own = row.get("tunefa_us")
    return Workload.parse(row["workload"]).flops / own / 1e6 if own else None


def _operators_rate(document: Document) -> list[str]:
    """A sentence about the rate at which the operators move the scores of the longest point."""
    found = [
        (sum(each.bytes for each in modelled.operators(workload)), row["operators_us"])
        for row in document.rows
        if row.get("operators_us") and not (workload := Workload.parse(row["workload"])).varlen
    ]
    if not found:
        return []
    moved, us = max(found)
    hbm = Target.named(document.device).device.hbm_bytes_per_s / 1e12
    return [
        f"The longest scores take the operators {moved / 1e9:.0f} GB of reads and writes, in "
        f"{us / 1e3:.1f} ms: {moved / us / 1e6:.1f} TB/s, of the memory's {hbm:.1f}. A faster mask "
        f"and softmax, which take most of that time, would lower the ratio."
    ]


def _remarks(document: Document) -> list[str]:
    said = []
    causal = [each for row in document.rows if (each := Workload.parse(row["workload"])).causal]
    if causal:
        said.append(
            "FLOPs count the visible (query, key) pairs of the causal mask only. Counting all "
            "pairs would make the TFLOP/s figures about twice as large."
        )
    low, high = CLAIMED
    reached = [ratio for row in document.rows if (ratio := _ratio(row, "operators")) is not None]
    if reached:
        said.append(
            f"A write-up about an NPU claims {low}× to {high}× over unfused attention for S 512 to "
            f"8,192; here it is {min(reached):.1f}× to {max(reached):.1f}×. The ratio depends on "
            f"how fast the chip's memory is beside its matrix units, so it differs between chips."
        )
    if document.is_measured:
        said += _operators_rate(document)
        said += rivals.defaults(document.rows)
    else:
        said.append(
            "Modelled: SDPA is taken to run FlashAttention-2, its default on NVIDIA GPUs; the "
            "operators move their scores through L2 or HBM at the full rate."
        )
    said += [*rivals.left_out(document.rows), *rivals.failed(document.rows)]
    return said


EXPERIMENT = Experiment(
    name="scaling",
    question="How much faster is a fused kernel than attention in PyTorch's operators?",
    points=tuple(
        f"b4_h{heads}_q{length}_d64_fp16_causal" for heads in (32, 8) for length in LENGTHS
    ),
    measured=measured,
    modelled=modelled_rows,
    tables=tables,
    draw=draw,
)
