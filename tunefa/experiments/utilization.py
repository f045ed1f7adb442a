"""The shares of a GPU's tensor cores, units of exp2 and memory that attention keeps busy.

Shares come from hardware counters (Nsight Compute) where this machine gives access to them. Else
they follow from the work and a time: for a measured time, the least time that each unit needs,
divided by it; for a modelled one, the cost model's busy cycles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel.roofline import EXP2, HBM, TENSOR, roofline
from tunefa.errors import TunefaError
from tunefa.experiments import figure, modelled, profiled, rivals
from tunefa.experiments.document import Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.experiments.table import Table, number, percent, times
from tunefa.experiments.titles import title
from tunefa.measure import counters
from tunefa.measure.counters import Report
from tunefa.spec import kernel as kernels
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

POINTS = (
    "b1_h16_q4096_k15360_d64_fp16_full",
    "b1_h8_q1664_d32_fp16_full",
    "b1_h32_kv8_q8192_d128_bf16_causal",
    "b4_h32_q2048_d64_fp16_causal",
)
CLAIMED_TFLOP = {POINTS[0]: 0.069, POINTS[1]: 0.0028}
"""The TFLOP that a write-up about an Orin (sm87) states; the first counts seqlen_q twice."""
PIPES = {"tensor": "tensor", "exp2": "exp2", "hbm": "HBM"}
METRICS = {
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "exp2": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "hbm": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
"""By unit, the counter of its share. The unit of exp2 (MUFU) is called XU, and also converts."""
_TIME = "gpu__time_duration.sum"


def measured(workload: Workload, settings: Settings) -> list[Row]:
    """Times tunefa's call, and reads the counters of one."""
    from tunefa.experiments import here, ours
    from tunefa.measure import contest

    target = here.target()
    found = contest.run(workload, {"tunefa": ours.maker()}, settings)
    if why := found.left_out.get("tunefa"):
        raise TunefaError(f"tunefa was not timed: {why}")
    row = {**arithmetic(workload), "time_us": found.scores["tunefa"].median_us}
    row |= {"source": "time", **_least_shares(workload, target, row["time_us"])}
    try:
        command = profiled.command(workload, seed=settings.seed)
        row |= counted(counters.read(command, [*METRICS.values(), _TIME]))
    except TunefaError as error:
        row["why_no_counters"] = str(error)
    return [row]


def counted(report: Report) -> Row:
    """Returns the shares that counters say; of several kernels, weighted with their times."""
    shares = {name: report.mean(metric, _TIME) for name, metric in METRICS.items()}
    parts = {f"{name}_share": None if s is None else s / 100 for name, s in shares.items()}
    return {"source": "ncu", "kernels": len(report.launches), **parts}


def modelled_row(workload: Workload, target: Target) -> list[Row]:
    """Computes the time of the config that the runtime chooses, and the busy cycles in it."""
    mine = modelled.ours(workload, target)
    case = Case(kernels.load(mine.choice.kernel), workload, target)
    arch = gpu(target.arch)
    tiling, bounds = case.tiling_and_estimate(mine.choice.config)
    resources: Resources = gpu_model.expected_resources(
        arch, tiling, int(bounds["smem_bytes"]), int(bounds["registers"])
    )
    found = gpu_model.predict(workload, arch, target.device, tiling, resources)
    busy_us = {
        pipe: found.steps * cycles / target.device.boost_mhz
        for pipe, cycles in found.cycles_per_step.items()
    }
    row = {**arithmetic(workload), "time_us": mine.time_us, "source": "model"}
    row["kernel"], row["limiter"] = mine.choice.kernel, found.limiter
    for name, us in {**busy_us, "hbm": found.hbm_us, "l2": found.l2_us}.items():
        row[f"{name}_share"] = min(1.0, us / mine.time_us)
    row["peak_tflops"] = _peak_tflops(workload, target)
    return [row]


def arithmetic(workload: Workload) -> Row:
    """Returns the FLOPs of a workload, step by step."""
    columns = workload.head_dim + workload.head_dim_v
    heads = workload.batch * workload.heads
    return {
        "workload": str(workload),
        "rectangle": workload.seqlen_q * workload.seqlen_k,
        "pairs": workload.pairs,
        "heads": heads,
        "flops_per_pair": 2 * columns,
        "flops": workload.flops,
        "flops_with_seqlen_q_twice": 2 * columns * heads * workload.seqlen_q**2,
    }


def tables(document: Document) -> list[Table]:
    """The shares of each point, and its arithmetic."""
    return [_shares(document), _steps(document)]


def _shares(document: Document) -> Table:
    head = ("workload", "us", "TFLOP/s", "of\npeak", *(f"{p}\nbusy" for p in PIPES.values()),
            "source")  # fmt: skip
    lines = [
        [
            _short(row),
            number(row.get("time_us"), 1),
            number(_tflops(row), 1),
            percent(_of_peak(row), 0),
            *(percent(row.get(f"{name}_share"), 0) for name in PIPES),
            str(row.get("source", "")),
        ]
        for row in _rows(document)
    ]
    words = frozenset({"workload", "source"})
    return Table("How busy the units are", head, lines, _remarks(document), words)


def _steps(document: Document) -> Table:
    head = ("workload", "visible\npairs", "heads", "FLOPs\nper pair", "TFLOP",
            "seqlen_q\ntwice", "too\nlow", "stated")  # fmt: skip
    lines = []
    for row in _rows(document):
        wrong, flops = row["flops_with_seqlen_q_twice"], row["flops"]
        lines.append(
            [
                _short(row),
                number(row["pairs"]),
                number(row["heads"]),
                number(row["flops_per_pair"]),
                number(flops / 1e12, 4),
                number(wrong / 1e12, 4) if _is_rectangular(row) else "same",
                times(flops / wrong) if _is_rectangular(row) else "",
                number(_claimed(row), 4) if _claimed(row) else "",
            ]
        )
    said = [*(_spelled_out(row) for row in _rows(document) if _is_rectangular(row)), _COUNTED]
    said += rivals.failed(document.rows)
    return Table("The FLOPs, step by step", head, lines, said, frozenset({"workload"}))


_COUNTED = (
    "FLOPs = visible pairs x heads of the batch x 2 (D + D of V): Q K^T and P V take a multiply "
    "and an add for each pair and column. A causal mask leaves the visible pairs only."
)


def _spelled_out(row: Row) -> str:
    """The product of a workload with more keys than queries, or fewer, and the usual mistake."""
    it = Workload.parse(row["workload"])
    flops, wrong = row["flops"] / 1e12, row["flops_with_seqlen_q_twice"] / 1e12
    columns = f"2 x ({it.head_dim} + {it.head_dim_v})"
    right = f"{row['pairs']:,} pairs x {row['heads']} x {columns}"
    return (
        f"{it.seqlen_q:,} x {it.seqlen_k:,}: {right} = {flops:.3f} TFLOP. With seqlen_q twice, "
        f"{it.seqlen_q:,} x {it.seqlen_q:,} x {row['heads']} x {columns} = {wrong:.3f} TFLOP, "
        f"which is {flops / wrong:.2f} times too low."
    )


def draw(document: Document, canvas: Any) -> None:
    """Draws the shares as bars, a group for each point."""
    axes = canvas.add_subplot()
    rows = _rows(document)
    for place, (name, label) in enumerate(PIPES.items()):
        shares = [100 * (row.get(f"{name}_share") or 0.0) for row in rows]
        where = [group + (place - 1) * 0.26 for group in range(len(rows))]
        axes.bar(where, shares, 0.24, color=figure.COLOURS[place], label=label)
        for x, share, row in zip(where, shares, rows, strict=True):
            known = row.get(f"{name}_share") is not None
            axes.annotate(f"{share:.0f}" if known else "–", (x, share), (0, 2), ha="center",
                          textcoords="offset points", fontsize=9)  # fmt: skip
    names = [title(Workload.parse(row["workload"]), "\n") for row in rows]
    axes.set_xticks(range(len(rows)), names, fontsize=8)
    axes.grid(False, axis="x")
    axes.set_ylim(0, 108)
    axes.set_ylabel("% of the peak")
    axes.legend(ncols=len(PIPES), loc="upper center", bbox_to_anchor=(0.5, 1.1))


def _rows(document: Document) -> list[Row]:
    return [row for row in document.rows if "error" not in row]


def _short(row: Row) -> str:
    workload = Workload.parse(row["workload"])
    lengths = f"{workload.seqlen_q:,} x {workload.seqlen_k:,}"
    mask = "full" if workload.band == (None, None) else "causal" if workload.causal else "window"
    return f"{lengths} D {workload.head_dim} {mask}{' packed' if workload.varlen else ''}"


def _is_rectangular(row: Row) -> bool:
    workload = Workload.parse(row["workload"])
    return workload.seqlen_q != workload.seqlen_k


def _claimed(row: Row) -> float | None:
    workload = Workload.parse(row["workload"])
    found = {Workload.parse(point): tflop for point, tflop in CLAIMED_TFLOP.items()}
    return found.get(workload)


def _tflops(row: Row) -> float | None:
    us = row.get("time_us")
    return row["flops"] / us / 1e6 if us else None


def _of_peak(row: Row) -> float | None:
    peak, reached = row.get("peak_tflops"), _tflops(row)
    return reached / peak if peak and reached is not None else None


def _peak_tflops(workload: Workload, target: Target) -> float | None:
    bound_us = roofline(workload, target).bounds_us.get(TENSOR)
    return workload.flops / bound_us / 1e6 if bound_us else None


def _least_shares(workload: Workload, target: Target, time_us: float) -> Row:
    """The shares that the work alone explains in this time."""
    bounds = roofline(workload, target).bounds_us
    names = {"tensor": TENSOR, "exp2": EXP2, "hbm": HBM}
    shares = {f"{name}_share": bounds[bound] / time_us for name, bound in names.items()}
    return {**shares, "peak_tflops": _peak_tflops(workload, target)}


def _remarks(document: Document) -> list[str]:
    sources = {row.get("source") for row in _rows(document)}
    said = [
        "tensor: the tensor cores; exp2: the units for special functions (MUFU); HBM: the device's "
        "memory.",
        '"Of peak" counts useful FLOPs at the boost clock; the share of busy tensor cores also '
        "counts products that the mask hides, and a unit's share cannot reach 100 % while the same "
        "warps wait for another.",
    ]
    if "model" in sources:
        said.append(
            "Modelled: cycles of each unit by the cost model of the config that the runtime "
            "chooses, divided by its expected time."
        )
    if "ncu" in sources:
        said.append(
            "Counted by ncu with cold caches; the time is that of the unprofiled call. exp2 is the "
            "XU pipe, which also converts numbers."
        )
    for row in _rows(document):
        if why := row.get("why_no_counters"):
            said.append(
                f"{row['workload']}: the shares are the least that the work needs in the measured "
                f"time, as there are no counters: {why}."
            )
    return said


EXPERIMENT = Experiment(
    name="utilization",
    question="How busy are the tensor cores, the units of exp2 and the memory?",
    points=POINTS,
    measured=measured,
    modelled=modelled_row,
    tables=tables,
    draw=draw,
)
