"""The speed of a tuned matrix product beside cuBLAS, on square matrices.

cuBLAS is what `torch.mm` calls; it holds kernels that were tuned by hand for each chip, and chooses
one by a heuristic. The gap between the kernel's default config and the config that a search found
is what the search gives; the rest of the gap is what the kernel's design costs or gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from tunefa.costmodel import latency
from tunefa.costmodel.estimate import estimates
from tunefa.costmodel.roofline import roofline
from tunefa.errors import TunefaError
from tunefa.experiments import figure, rivals
from tunefa.experiments.document import Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.experiments.table import Table, number, times
from tunefa.spec import kernel as kernels
from tunefa.spec.matmul import OP, Matmul, own
from tunefa.spec.rounding import ceil_div
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store import results as store

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings
    from tunefa.search.budget import Budget
    from tunefa.spec.trial import Mode

SIZES = (1024, 2048, 4096, 8192)
CLAIMED = (1.07, 1.17)
"""The speed-up over cuBLAS that a write-up states for a tuned Triton kernel on an RTX 4090."""
CONTESTANTS = ("tunefa", "default", "cublas")
TITLES = {
    "tunefa": "tuned",
    "default": "default",
    "cublas": "cuBLAS",
    "roofline": "roofline",
}
Calls = dict[str, Callable[[], None]]
"""The call of each contestant."""


def tune(workload: Workload, target: Target, mode: Mode, budget: Budget) -> str | None:
    """Searches for the config of a workload on this machine's GPU, unless the store has a record of
    it, and stores the winner. Returns why there is none, in a sentence; None if there is one."""
    import optuna

    from tunefa.search import run as search
    from tunefa.search.request import Request

    home = store.default_store()
    serving = tuple(kernels.serving(workload, target.arch))
    if lookup.lookup(home, workload, target, serving).how == "exact":
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would print each trial
    found = search.search(Request(workload, target, True, serving, budget, mode=mode), home)
    if found.record is not None:
        return None
    outcomes = Counter(each.trial.outcome for each in found.finished)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    return f"the search for {workload} found no right config ({counts or 'no trials'})"


def measured(workload: Workload, settings: Settings) -> list[Row]:
    """Times the tuned config, the default config and cuBLAS on the same matrices, in rounds that
    rotate. Raises TunefaError where a config is wrong, or the GPU is unknown."""
    import torch

    from tunefa.measure import launches, ops
    from tunefa.runtime.chip import Chip

    a, b, c = ops.of(workload).tensors(workload, "cuda", settings.seed)
    chip = Chip.of(a.device)
    if chip.target is None:
        raise TunefaError(chip.why_not)
    choice, tuned = launches.best(store.default_store(), workload, chip.target, (a, b, c))
    case = Case(kernels.load(choice.kernel), workload, chip.target)
    default = launches.launch(case, case.default(), (a, b, c))

    def cublas() -> None:
        torch.mm(a, b, out=c)

    calls: Calls = dict(zip(CONTESTANTS, (tuned, default, cublas), strict=True))
    return [
        {
            "workload": str(workload),
            "kernel": choice.kernel,
            "config": dict(choice.config),
            "choice": choice.why,
            **_errors(workload, calls, (a, b, c)),
            **_timed(calls, settings),
        }
    ]


def _errors(workload: Workload, calls: Calls, tensors: tuple[Any, ...]) -> Row:
    """The error of each contestant against fp64. Raises TunefaError where a config is wrong."""
    import torch

    from tunefa.measure import ops

    op, errors = ops.of(workload), {}
    expected = op.expected(workload, "normal", tensors, torch.float64)
    for name, call in calls.items():
        tensors[-1].fill_(float("nan"))
        call()
        found = expected.compare(tensors[-1])
        if not found.passed and name != "cublas":
            raise TunefaError(f"the {TITLES[name]} config is wrong: {found.reason}")
        errors[f"{name}_error"] = found.error
    return errors


def _timed(calls: Calls, settings: Settings) -> Row:
    """The median of each contestant, all samples, and the state of the device meanwhile."""
    from tunefa.measure.monitor import Monitor
    from tunefa.measure.timing import Stopwatch, latency_us

    stopwatch, samples = Stopwatch(settings.mode), {name: list[float]() for name in calls}
    prepared = {name: stopwatch.prepared(call) for name, call in calls.items()}
    with Monitor() as watch:
        for round_ in range(settings.rounds):
            first = round_ % len(CONTESTANTS)
            rotated = CONTESTANTS[first:] + CONTESTANTS[:first]
            each_us = stopwatch.times_us([prepared[name] for name in rotated])
            for name, both_us in zip(rotated, each_us, strict=True):
                samples[name].append(latency_us(settings.mode, *both_us))
            watch.read()
    medians = {f"{name}_us": median(each) for name, each in samples.items()}
    return {**medians, "samples_us": samples, "device": watch.summary()}


def modelled_rows(workload: Workload, target: Target) -> list[Row]:
    """Computes the times of the best config by the model and of the default, and the roofline."""
    kernel, *_ = kernels.serving(workload, target.arch)
    case = Case(kernel, workload, target)
    configs = case.feasible().configs
    each = estimates(case, configs)
    best = min(range(len(configs)), key=lambda place: each[place].time_us)
    return [
        {
            "workload": str(workload),
            "kernel": kernel.name,
            "config": dict(configs[best]),
            "tunefa_us": each[best].time_us,
            "default_us": latency.of(case).predict(case, case.default()).time_us,
            "roofline_us": roofline(workload, target).least_us,
        }
    ]


def tables(document: Document) -> list[Table]:
    """One table: times and TFLOP/s by size, and the speed-ups."""
    other = "cublas" if document.is_measured else "roofline"
    over = f"over\n{TITLES[other]}"
    head = ("m, n, k", "tuned\nus", "default\nus", f"{TITLES[other]}\nus", "tuned\nTFLOP/s",
            f"{TITLES[other]}\nTFLOP/s", "over the\ndefault", over)  # fmt: skip
    lines = []
    for row in _rows(document):
        asked = own(Workload.parse(row["workload"]))
        tuned, default, reference = (row.get(f"{x}_us") for x in ("tunefa", "default", other))
        lines.append(
            [
                _size(asked),
                *(number(us, 1) for us in (tuned, default, reference)),
                *(number(_tflops(asked.flops, us), 1) for us in (tuned, reference)),
                times(_ratio(default, tuned)),
                times(_ratio(reference, tuned)),
            ]
        )
    title = f"C = A B, {_dtypes(document)}"
    return [Table(title, head, lines, _remarks(document), frozenset({"m, n, k"}))]


def draw(document: Document, canvas: Any) -> None:
    """Draws the TFLOP/s of each contestant by size."""
    rows, axes = _rows(document), canvas.add_subplot()
    names = [*CONTESTANTS[:2], "cublas" if document.is_measured else "roofline"]
    labels = [_size(own(Workload.parse(row["workload"]))) for row in rows]
    for name, colour in zip(names, figure.COLOURS, strict=False):
        flops = (Workload.parse(row["workload"]).flops for row in rows)
        rates = [_tflops(f, row.get(f"{name}_us")) for f, row in zip(flops, rows, strict=True)]
        style = {"roofline": "--", "default": "s:"}.get(name, "o-")  # lines may coincide
        colour = figure.THEORY if name == "roofline" else colour
        size = 9 if name == "default" else 5
        axes.plot(range(len(rows)), rates, style, color=colour, label=TITLES[name],
                  markersize=size, zorder=1 if name == "default" else 2)  # fmt: skip
    axes.set_xticks(range(len(rows)), labels)
    axes.set(xlabel="m, n, k", ylabel="TFLOP/s", ylim=(0, None))
    axes.set(title=f"Matrix products, {_dtypes(document)}")
    axes.legend(loc="lower right")


def _rows(document: Document) -> list[Row]:
    """The rows that did not fail, from the smallest product to the largest."""
    right = [row for row in document.rows if "error" not in row]
    return sorted(right, key=lambda row: Workload.parse(row["workload"]).flops)


def _dtypes(document: Document) -> str:
    found = [Workload.parse(row["workload"]).dtype for row in _rows(document)]
    return ", ".join(dict.fromkeys(found)) or "no point succeeded"


def _size(asked: Matmul) -> str:
    """The size of a product: one number for square matrices."""
    sizes = (asked.m, asked.n, asked.k)
    return str(asked.m) if len(set(sizes)) == 1 else ", ".join(map(str, sizes))


def _tflops(flops: int, us: float | None) -> float:
    return flops / us / 1e6 if us else float("nan")


def _ratio(slower_us: float | None, faster_us: float | None) -> float | None:
    return slower_us / faster_us if slower_us and faster_us else None


def _reached(document: Document) -> list[str]:
    """Sentences about the measured speed-ups, and about products with fewer tiles than SMs."""
    said, sms = list[str](), Target.named(document.device).device.sms
    ratios = [_ratio(row.get("cublas_us"), row.get("tunefa_us")) for row in _rows(document)]
    if known := [ratio for ratio in ratios if ratio is not None]:
        said.append(f"Here it is {times(min(known))} to {times(max(known))}.")
    for row in _rows(document):
        asked, config = own(Workload.parse(row["workload"])), row.get("config")
        if not config:
            continue
        tiles = ceil_div(asked.m, config["BLOCK_M"]) * ceil_div(asked.n, config["BLOCK_N"])
        if tiles < sms:
            said.append(
                f"{_size(asked)}: {tiles} tiles of {config['BLOCK_M']} x {config['BLOCK_N']} for "
                f"{sms} SMs; the kernel does not divide k between CTAs."
            )
    return said


def _remarks(document: Document) -> list[str]:
    low, high = CLAIMED
    said = [
        f"A write-up states {low:.2f}x to {high:.2f}x over cuBLAS for its tuned Triton kernel on "
        "an RTX 4090. That chip has mma.sync alone, for Triton and for cuBLAS. Hopper has WGMMA "
        "and TMA too; this kernel uses them, but is neither persistent nor warp-specialised.",
    ]
    if document.is_measured:
        said += _reached(document)
        unsearched = [
            row["workload"]
            for row in _rows(document)
            if not str(row.get("choice", "")).startswith("exact")
        ]
        if unsearched:
            said.append(
                f"Without a record of their own, so that they ran what the runtime chose: "
                f"{', '.join(unsearched)}."
            )
    else:
        said.append(
            "Modelled: the tuned config is the fastest by the latency model. On an H200 that model "
            "expects 0.81 to 1.06 times what the default took in fp16; no other products and chips "
            "were compared. cuBLAS is not modelled; the roofline is "
            "the least time that the chip can take."
        )
    return [*said, *rivals.failed(document.rows)]


EXPERIMENT = Experiment(
    name=OP,
    question="How does a tuned Triton matrix product compare with cuBLAS?",
    points=tuple(f"matmul_m{size}_n{size}_k{size}_fp16" for size in SIZES),
    measured=measured,
    modelled=modelled_rows,
    tables=tables,
    draw=draw,
    op=OP,
    tune=tune,
)
