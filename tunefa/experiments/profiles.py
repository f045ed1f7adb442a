"""Profiles of single calls: by Triton's Proton, by PyTorch's profiler, or by Nsight Compute.

Every contestant is called a few times first, and then once in a range with tunefa's name for it, so
that a profile shows nothing but the kernels of one call. A profiler slows calls down: its times
explain, and are no benchmark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError, unknown
from tunefa.experiments import profile_files, profiled
from tunefa.experiments.document import Row
from tunefa.experiments.table import Table, number
from tunefa.experiments.titles import title
from tunefa.measure import counters
from tunefa.measure.counters import Report
from tunefa.spec.workload import Workload

FIGURES: Mapping[str, tuple[str, str, str]] = {
    "gpu__time_duration.sum": (
        "time", "us", "how long the kernels ran, with cold caches and at whatever clock"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": (
        "SM", "%", "how busy the busiest unit of the SMs was; far below 80 % they wait"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": (
        "tensor cores", "%", "how busy the tensor cores were; a fused kernel should keep them so"),
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed": (
        "exp2", "%", "how busy the special-function units were; beside busy tensor cores they "
        "limit head_dim 64"),
    "smsp__issue_active.avg.pct_of_peak_sustained_active": (
        "issue", "%", "in how many cycles a scheduler issued an instruction; a high figure means "
        "too much arithmetic beside the products"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": (
        "occupancy", "%", "how many of the warps that an SM can hold were there; warp-specialised "
        "kernels need few"),
    "dram__bytes.sum": (
        "HBM traffic", "MB", "what was read from and written to HBM; Q, K, V and the output once "
        "are the least"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": (
        "HBM", "%", "how busy the memory was; a fused kernel for long sequences should not be "
        "limited by it"),
    "lts__t_sector_hit_rate.pct": (
        "L2 hits", "%", "what share of accesses the L2 served; K and V are read again from there"),
    "launch__registers_per_thread": (
        "registers", "", "how many registers a thread has; more of them leave room for fewer CTAs"),
}  # fmt: skip
"""The ten counters that matter to attention: by name the title, the unit, and what it says."""
_SCALES = {"us": 1e-3, "MB": 1e-6}
_TIME = "gpu__time_duration.sum"
_MOST_KERNELS = 30


@dataclass(frozen=True)
class Profile:
    """The profile of a workload: the files that a tool opens, and figures as rows."""

    tool: str
    workload: str
    files: Sequence[Path]
    open_with: str
    """The way to look at the files, in one sentence."""
    rows: Sequence[Row]
    tables: Sequence[Table]

    def to_data(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        files = [str(path) for path in self.files]
        return {"tool": self.tool, "workload": self.workload, "files": files, "rows": self.rows}


def profile(
    tool: str, workload: Workload, contestants: Sequence[str], folder: Path, seed: int = 0
) -> Profile:
    """Profiles one call of each contestant, `tunefa` or names of peers, and writes the tool's files
    into a folder.

    Raises TunefaError for an unknown tool, and where the tool is missing or cannot see the GPU.
    """
    if tool not in TOOLS:
        raise unknown("profiler", tool, TOOLS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TunefaError(f"cannot make the folder {folder}: {error.strerror}") from error
    return TOOLS[tool](workload, contestants, folder, seed)


def _torch(workload: Workload, contestants: Sequence[str], folder: Path, seed: int) -> Profile:
    """PyTorch's profiler: a trace for Perfetto, and the kernels; on the CPU its operators."""
    import torch
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as torch_profile

    device = "cuda" if torch.cuda.is_available() else "cpu"
    calls = {name: profiled.call_of(workload, name, device, seed) for name in contestants}
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with torch_profile(activities=activities, acc_events=True) as run:  # else it warns
        for name, call in calls.items():
            with record_function(profiled.range_name(name)):
                call()
                if device == "cuda":
                    torch.cuda.synchronize()
    path = folder / f"torch-{workload}.json"
    _written(path, lambda: run.export_chrome_trace(str(path)))
    if device == "cuda":
        rows = profile_files.ranges(path, contestants)
    else:
        rows = [row for name in contestants for row in _operators(run.events(), name)]
    where = "kernels on the GPU" if device == "cuda" else "operators on the CPU: there is no GPU"
    table = _kernels(f"{title(workload)}: {where}", rows)
    said = "Open the trace in Perfetto, https://ui.perfetto.dev."
    return Profile("torch", str(workload), [path], said, rows, [table])


def _operators(events: Any, contestant: str) -> list[Row]:
    """The operators in a contestant's range on the CPU, with their own times."""
    name = profiled.range_name(contestant)
    found, counts = Counter[str](), Counter[str]()
    for each in (event for event in events if event.name == name and event.cpu_parent is None):
        for event in _within(each):
            if event is not each:
                found[event.name] += event.self_cpu_time_total
                counts[event.name] += 1
    return [
        {"contestant": contestant, "kernel": kernel, "count": counts[kernel], "time_us": us}
        for kernel, us in found.most_common()
    ]


def _within(event: Any) -> list[Any]:
    return [event, *(each for child in event.cpu_children for each in _within(child))]


def _proton(workload: Workload, contestants: Sequence[str], folder: Path, seed: int) -> Profile:
    """Triton's Proton: a hatchet file with a scope for each contestant."""
    try:
        import torch
        import triton.profiler as proton
    except ImportError as error:
        raise TunefaError(f"Proton comes with Triton, which cannot be imported: {error}") from error
    calls = {name: profiled.call_of(workload, name, "cuda", seed) for name in contestants}
    stem = folder / f"proton-{workload}"
    try:
        proton.start(str(stem))
    except RuntimeError as error:
        raise TunefaError(
            f"Proton cannot profile this GPU: {error}: end other profilers (nsys, ncu), and see "
            "that CUPTI is installed"
        ) from error
    for name, call in calls.items():
        with proton.scope(profiled.range_name(name)):
            call()
            torch.cuda.synchronize()
    proton.finalize()
    path = stem.with_name(f"{stem.name}.hatchet")
    rows = profile_files.scopes(path)
    said = f"Look at it with proton-viewer -m time/us {path} (pip install llnl-hatchet pandas)."
    table = _kernels(f"{title(workload)}: kernels in Proton's scopes", rows)
    return Profile("proton", str(workload), [path], said, rows, [table])


def _ncu(workload: Workload, contestants: Sequence[str], folder: Path, seed: int) -> Profile:
    """Nsight Compute: a report for each contestant, and the figures that matter."""
    files, rows = list[Path](), list[Row]()
    for name in contestants:
        path = folder / f"ncu-{name}-{workload}.ncu-rep"
        command = profiled.command(workload, name, seed)
        counters.record(command, path, list(FIGURES))
        files.append(path)
        rows.append(figures(name, counters.imported(path)))
    said = f"Open a report with ncu-ui, such as ncu-ui {files[0]}."
    return Profile("ncu", str(workload), files, said, rows, [_figures(title(workload), rows)])


def figures(contestant: str, report: Report) -> Row:
    """Returns the ten figures of a contestant: totals of times and bytes, and means of shares that
    are weighted with the kernels' times, in ncu's base units."""
    row: Row = {"contestant": contestant, "kernels": len(report.launches)}
    for metric, (_, unit, _) in FIGURES.items():
        summed = unit in _SCALES
        row[metric] = report.total(metric) if summed else report.mean(metric, _TIME)
    return row


def _figures(name: str, rows: Sequence[Row]) -> Table:
    contestants = [str(row["contestant"]) for row in rows]
    lines = []
    for metric, (words, unit, says) in FIGURES.items():
        cells = []
        for row in rows:
            value = row.get(metric)
            cells.append(number(None if value is None else value * _SCALES.get(unit, 1.0), 1))
        lines.append([f"{words}, {unit}" if unit else words, *cells, says])
    head = ("figure", *contestants, "what it says")
    said = ["ncu counts kernels, and neither copies nor fills."]
    return Table(f"{name}: Nsight Compute", head, lines, said, frozenset({"figure", head[-1]}))


def _kernels(name: str, rows: Sequence[Row]) -> Table:
    lines = [
        [
            str(row["contestant"]),
            _shortened(profile_files.short_name(str(row["kernel"]))),
            number(row["count"]),
            number(row["time_us"], 1),
        ]
        for row in rows[:_MOST_KERNELS]
    ]
    said = ["A profiler slows calls down: these times explain, and are no benchmark."]
    if len(rows) > len(lines):
        said.insert(0, f"{len(rows) - len(lines)} more are in the file.")
    head = ("contestant", "kernel", "calls", "us")
    return Table(name, head, lines, said, frozenset({"contestant", "kernel"}))


def _shortened(kernel: str, most: int = 60) -> str:
    """A kernel's name without the middle of a long one."""
    return kernel if len(kernel) <= most else f"{kernel[: most - 21]}…{kernel[-20:]}"


def _written(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except (OSError, RuntimeError) as error:
        raise TunefaError(f"cannot write {path}: {error}") from error
    if not path.is_file():
        raise TunefaError(f"cannot write {path}: look at the folder's rights")


TOOLS: Mapping[str, Callable[[Workload, Sequence[str], Path, int], Profile]] = {
    "proton": _proton,
    "torch": _torch,
    "ncu": _ncu,
}
"""The profilers, by their names on the command line."""
