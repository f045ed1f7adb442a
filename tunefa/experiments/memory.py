"""Peak memory of attention in PyTorch's operators, O(N^2), and of a fused kernel, O(N).

The operators keep the matrix of scores and that of probabilities, seqlen_q x seqlen_k for each
head, until the output is there. A fused kernel needs its output, and for gradients one number for
each row, the logsumexp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.errors import TunefaError
from tunefa.experiments import figure, rivals
from tunefa.experiments.document import Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.experiments.table import NO_VALUE, Table, number, times
from tunefa.spec.target import Target
from tunefa.spec.workload import DTYPES, Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

LENGTHS = (1024, 2048, 4096, 8192)
CONTESTANTS = ("operators", "sdpa", "tunefa")
CLAIMED_MB: Mapping[str, Mapping[int, float]] = {
    "operators": dict(zip(LENGTHS, (8, 32, 128, 512), strict=True)),
    "tunefa": dict(zip(LENGTHS, (0.5, 1, 2, 4), strict=True)),
}
"""The peaks in MiB that write-ups state for batch 1, 1 head and head_dim 64."""
MIB = 2**20


def measured(workload: Workload, settings: Settings) -> list[Row]:
    """Reads the allocator's peak over what was allocated before the call, for each contestant."""
    import torch

    from tunefa.experiments import ours
    from tunefa.measure import check, peers
    from tunefa.measure.peer import Unserved

    made = check.tensors(workload, "cuda", settings.seed)
    tensors = (*made[:3], *made[5:])
    del made  # its outputs are not used
    row: Row = {**_sizes(workload), "left_out": {}}
    makers = {name: peers.load(name).make for name in CONTESTANTS[:-1]}
    for name, make in {**makers, "tunefa": ours.maker()}.items():
        try:
            row[f"{name}_bytes"] = _peak(make(workload, tensors))
        except torch.cuda.OutOfMemoryError:
            row[f"{name}_bytes"] = None
            row["left_out"][name] = "out of memory"
        except (RuntimeError, TunefaError, Unserved) as error:
            row["left_out"][name] = str(error).partition("\n")[0]
        torch.cuda.empty_cache()
    return [row]


def _peak(call: Callable[[], Any]) -> int:
    """The bytes that a call allocates at most. It runs once before: what stays for good, such as a
    workspace of cuBLAS, is no part of a call."""
    import torch

    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def modelled_rows(workload: Workload, target: Target) -> list[Row]:
    """Counts the tensors that are alive at the same time."""
    if workload.varlen:
        raise TunefaError(f"{workload} is packed: PyTorch's operators would need a padded batch")
    row = _sizes(workload)
    # FlashAttention-2 always writes the logsumexp.
    fused = {"sdpa_bytes": row["output_bytes"] + row["lse_bytes"]}
    fused["tunefa_bytes"] = row["output_bytes"]
    # A function holds its scores until it returns, beside the probabilities and the output.
    operators = 2 * row["scores_bytes"] + row["output_bytes"]
    available = target.device.memory_bytes
    if available is not None and operators + row["inputs_bytes"] > available:
        row["left_out"] = {"operators": "out of memory"}
        return [{**row, "operators_bytes": None, **fused}]
    return [{**row, "operators_bytes": operators, **fused}]


def _sizes(workload: Workload) -> Row:
    """The bytes of the tensors of one call: inputs, output, logsumexp, and one matrix of scores."""
    size = DTYPES[workload.dtype]
    rows = workload.batch * workload.heads * workload.seqlen_q
    keys = workload.batch * workload.heads_kv * workload.seqlen_k
    return {
        "workload": str(workload),
        "inputs_bytes": size
        * (rows * workload.head_dim + keys * (workload.head_dim + workload.head_dim_v)),
        "output_bytes": rows * workload.head_dim_v * max(size, 2),
        "lse_bytes": 4 * rows,
        "scores_bytes": rows * workload.seqlen_k * size,
    }


def tables(document: Document) -> list[Table]:
    """One table for each shape: the peak of each contestant, by length, beside what is claimed."""
    head = ("S", "operators\nMiB", "2 S²\nMiB", "claimed,\noperators", "SDPA\nMiB",
            "tunefa\nMiB", "output\nMiB", "claimed,\nfused", "less")  # fmt: skip
    made = []
    for title, rows in _by_shape(document).items():
        lines = [_cells(row) for row in rows]
        made.append(Table(title, head, lines, _remarks(document, rows)))
    if made:
        made[-1] = replace(made[-1], remarks=[*made[-1].remarks, *rivals.failed(document.rows)])
    return made


def _cells(row: Row) -> list[str]:
    workload = Workload.parse(row["workload"])
    own, other = row.get("tunefa_bytes"), row.get("operators_bytes")
    claimed = {
        name: number(_claimed(workload, name), 1 if name == "tunefa" else 0) for name in CLAIMED_MB
    }
    return [
        number(workload.seqlen_q),
        _mib(row, "operators"),
        number(2 * row["scores_bytes"] / MIB, 1),
        claimed["operators"],
        _mib(row, "sdpa"),
        _mib(row, "tunefa"),
        number(row["output_bytes"] / MIB, 1 if row["output_bytes"] >= 10 * MIB else 3),
        claimed["tunefa"],
        times(other / own if own and other else None, 0),
    ]


def _claimed(workload: Workload, name: str) -> float | None:
    """The claim in MiB, which is for batch 1, 1 head and head_dim 64 only."""
    alone = (workload.batch, workload.heads, workload.head_dim) == (1, 1, 64)
    return CLAIMED_MB[name].get(workload.seqlen_q) if alone else None


def _mib(row: Row, name: str) -> str:
    value = row.get(f"{name}_bytes")
    if value is None:
        return str(row.get("left_out", {}).get(name, NO_VALUE))
    return number(value / MIB, 1 if value >= 10 * MIB else 3)


def draw(document: Document, canvas: Any) -> None:
    """Draws the peaks by length on logarithmic axes, beside lines of O(N^2) and O(N)."""
    shapes = _by_shape(document)
    for place, (title, rows) in enumerate(shapes.items(), start=1):
        axes = canvas.add_subplot(1, len(shapes), place)
        lengths = [Workload.parse(row["workload"]).seqlen_q for row in rows]
        for name, colour in _COLOURS.items():
            sizes = [row.get(f"{name}_bytes") for row in rows]
            mib = [float("nan") if size is None else size / MIB for size in sizes]
            style = "s--" if name == "sdpa" else "o-"  # it may lie on tunefa's line
            size = 9 if name == "sdpa" else 5
            label = rivals.TITLES[name]
            axes.plot(lengths, mib, style, color=colour, label=label, markersize=size)
        for power, label, key in ((2, "O(N²)", "scores_bytes"), (1, "O(N)", "output_bytes")):
            start = rows[0][key] / MIB
            line = [start * (length / lengths[0]) ** power for length in lengths]
            axes.plot(lengths, line, "--", color=figure.THEORY, linewidth=1)
            axes.annotate(label, (lengths[-1], line[-1]), (-4, -16), textcoords="offset points",
                          ha="right", color=figure.THEORY)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()
        axes.set(xlabel="sequence length", ylabel="peak of one call, MiB", title=title)
        axes.legend()


_COLOURS = {"operators": figure.COLOURS[1], "sdpa": figure.COLOURS[4], "tunefa": figure.OURS}


def _by_shape(document: Document) -> dict[str, list[Row]]:
    """The rows of each shape, by what its workloads have in common."""
    found: dict[str, list[Row]] = {}
    for row in document.rows:
        if "error" not in row:
            workload = Workload.parse(row["workload"])
            title = f"batch {workload.batch}, heads {workload.heads}, head_dim {workload.head_dim}"
            found.setdefault(f"{title}, {workload.dtype}", []).append(row)
    return found


def _remarks(document: Document, rows: list[Row]) -> list[str]:
    said = [
        "The peak counts what one call allocates beside its inputs: attention in operators keeps "
        "two matrices of S² elements for each head beside its output. A fused kernel needs its "
        "output, and one fp32 number for each row if it writes the logsumexp, for gradients."
    ]
    if any(_claimed(Workload.parse(row["workload"]), "tunefa") for row in rows):
        said.append(
            "The claimed 8 to 512 MB are S² × 8 bytes, two matrices in fp32; in fp16 they take "
            "half. The claimed 0.5 to 4 MB are S × 64 × 2 bytes × 4 tensors: they count Q, K and V "
            "too, which are there before the call."
        )
    if not document.is_measured:
        said.append("Modelled: sizes of tensors that are alive at the same time, no workspaces.")
    return said


EXPERIMENT = Experiment(
    name="memory",
    question="How much memory does a fused kernel save?",
    points=tuple(
        f"b{batch}_h{heads}_q{length}_d64_fp16_full"
        for batch, heads in ((1, 1), (4, 8))
        for length in LENGTHS
    ),
    measured=measured,
    modelled=modelled_rows,
    tables=tables,
    draw=draw,
)
