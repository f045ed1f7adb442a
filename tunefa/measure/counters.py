"""Hardware counters of a GPU, read by Nsight Compute (`ncu`), which runs a command and prints CSV.

`ncu --csv --page raw` prints a line with the columns' names, a line with their units, and a line
for each launch; lines that begin with `==` are its log. Beside the counters that were asked for,
hundreds of columns describe the device and the launch. Copies are no kernels and have no line.
Sources: Nsight Compute's documentation, "Nsight Compute CLI", options --csv, --page and
--print-units; a recording on an H200, tests/fixtures/ncu/h200.csv.

ncu runs a kernel several times, once for each group of counters, and by default empties all caches
before each. The clocks are left as they are.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunefa.errors import TunefaError

LIMIT_S = 300.0
"""The longest that one command may run under ncu."""
_CSV = ("--csv", "--page", "raw", "--print-units", "base")
_KERNEL = "Kernel Name"
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
_TIMES_NS = {
    **{"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    **{"nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9},
}
_UNITS = {**_BYTES, **_TIMES_NS}
"""By unit, the factor to bytes or nanoseconds, in which values are kept. A user's settings may
choose other units; releases before 2023 spell out `nsecond`."""
_FAILURES = {
    "ERR_NVGPUCTRPERM": (
        "this user may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root, in a container "
        "with --cap-add=SYS_ADMIN, or have the administrator load the nvidia module with "
        "NVreg_RestrictProfilingToAdminUsers=0"
    ),
    "Failed to initialize the profiler": (
        "ncu cannot reach the GPU's counters from here, as in some sandboxes (gVisor) and virtual "
        "machines: run it on the host"
    ),
    "No kernels were profiled": (
        "ncu saw no kernel between the start and the end of the profile: the call ran none on the "
        "GPU, or ran in another process"
    ),
    "is already in use": (
        "another profiler holds the GPU's counters: end it (ncu, nsys, DCGM), and run this again"
    ),
}
"""By a phrase in ncu's log, the reason why there are no counters."""
_ABOUT_METRICS = re.compile(r"^==(?:ERROR|WARNING)==.*\bmetrics?\b.*__.*$", re.M | re.I)
"""A line of ncu's log that names a counter which the chip, or this ncu, does not have."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, and its counters."""

    kernel: str
    """The kernel's name, with the types of its arguments where ncu knows them."""
    values: Mapping[str, float | None] = field(hash=False)
    """The counters by their names in ncu: bytes, nanoseconds, percent, or numbers; None for one
    that the chip does not have."""


@dataclass(frozen=True)
class Report:
    """Everything that ncu has read of one command."""

    launches: Sequence[Launch]

    def total(self, metric: str) -> float | None:
        """Returns the sum of a counter over all launches; None if one of them lacks it."""
        found = [launch.values.get(metric) for launch in self.launches]
        known = [value for value in found if value is not None]
        return sum(known) if known and len(known) == len(found) else None

    def mean(self, metric: str, weight: str) -> float | None:
        """Returns the mean of a counter over all launches, each weighted with another counter,
        such as its time; None if one of them lacks either."""
        total = self.total(weight)
        parts = [(launch.values.get(metric), launch.values.get(weight)) for launch in self.launches]
        known = [value * share for value, share in parts if value is not None and share is not None]
        return sum(known) / total if total and len(known) == len(parts) else None


def tool() -> str:
    """Returns the path of ncu: that in PATH, or in the CUDA toolkit. Raises TunefaError."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    folders = [f"{home}/bin" for home in homes if home]
    found = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(folders))
    if found is None:
        raise TunefaError(
            "Nsight Compute is missing: there is no ncu in PATH or in the CUDA toolkit: install "
            "the package nsight-compute of NVIDIA's repository, or set CUDA_HOME"
        )
    return found


def read(command: Sequence[str], metrics: Sequence[str]) -> Report:
    """Runs a command under ncu and returns the counters of what it launches between
    cudaProfilerStart and cudaProfilerStop.

    A counter that this chip does not have is None everywhere. Raises TunefaError if ncu is missing,
    may not read counters, or sees no kernel, and if the command fails or takes over LIMIT_S.
    """
    launches = parse(_known(lambda asked: printed(command, asked), metrics))
    return Report([_with(launch, metrics) for launch in launches])


def printed(command: Sequence[str], metrics: Sequence[str]) -> str:
    """Returns what ncu prints of these counters, as text. Raises what `read` raises."""
    return _run(command, (*_CSV, "--metrics", ",".join(metrics)))


def record(command: Sequence[str], path: Path, metrics: Sequence[str]) -> None:
    """Runs a command under ncu and writes all that ncu knows to read, and these counters, to a
    report, `path`, which Nsight Compute opens. Raises what `read` raises."""
    words = ("--set", "full", "--force-overwrite", "--export", str(path), "--metrics")
    _require_success(_known(lambda asked: _run(command, (*words, ",".join(asked))), metrics))
    if not path.is_file():
        raise TunefaError(f"ncu has written no {path}: look at the folder's rights")


def imported(path: Path) -> Report:
    """Returns the counters in a report that `record` wrote. Raises TunefaError for another file."""
    words = [tool(), "--import", str(path), *_CSV]
    return Report(parse(_said(words).stdout))


def parse(text: str) -> list[Launch]:
    """Returns the launches in what ncu printed. Raises TunefaError where there are none, with the
    reason that ncu gives, and for CSV that is cut off."""
    _require_success(text)
    lines = [line for line in text.splitlines() if not line.startswith("==")]
    rows = list(csv.reader(lines))
    start = next((place for place, row in enumerate(rows) if _KERNEL in row), None)
    if start is None:
        raise TunefaError(
            f"ncu printed no table: {_first_complaint(text) or 'its output is empty'}"
        )
    names, body = rows[start], rows[start + 1 :]
    units = body[0] if body and len(body[0]) == len(names) and not body[0][0] else [""] * len(names)
    launches = []
    for row in body:
        if not row or not row[0].strip().isdigit():  # the units, or what the command printed
            continue
        if len(row) != len(names):
            raise TunefaError(
                f"ncu's line for launch {row[0]} has {len(row)} of {len(names)} columns: its "
                f"output is cut off, so run it again"
            )
        launches.append(_launch(dict(zip(names, zip(row, units, strict=True), strict=True))))
    if not launches:
        raise TunefaError(_FAILURES["No kernels were profiled"])
    return launches


def _launch(cells: Mapping[str, tuple[str, str]]) -> Launch:
    """One line: counters are the columns whose names have two underscores."""
    values = {name: _value(*cell) for name, cell in cells.items() if "__" in name}
    return Launch(cells[_KERNEL][0], values)


def _value(text: str, unit: str) -> float | None:
    """A number in bytes, ns or its own unit; None for `n/a` and other words."""
    try:
        value = float(text.replace(",", "")) * _UNITS.get(unit, 1.0)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _known(run: Callable[[Sequence[str]], str], metrics: Sequence[str]) -> str:
    """Returns the log of a run with those counters that exist: it is repeated without those that
    ncu complains about. Raises TunefaError if there are none."""
    asked = list(metrics)
    while asked:
        log = run(asked)
        complaints = " ".join(_ABOUT_METRICS.findall(log))
        left = [metric for metric in asked if metric not in complaints]
        if len(left) == len(asked):
            return log
        asked = left
    raise TunefaError(f"this chip has none of the counters {', '.join(metrics)}")


def _with(launch: Launch, metrics: Sequence[str]) -> Launch:
    return Launch(launch.kernel, {metric: launch.values.get(metric) for metric in metrics})


def _run(command: Sequence[str], options: Sequence[str]) -> str:
    """Returns ncu's log of one run. Raises TunefaError where the command itself fails."""
    with tempfile.TemporaryDirectory(prefix="tunefa-ncu-") as folder:
        log = Path(folder, "log.csv")
        words = [tool(), "--profile-from-start", "off", "--clock-control", "none", "--nvtx",
                 "--target-processes", "application-only", "--log-file", str(log),
                 *options, *command]  # fmt: skip
        done = _said(words)
        said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if done.returncode:
        # ncu's own reasons come before the command's, which often fails because of them.
        _require_success(said + done.stderr)
        if not _ABOUT_METRICS.search(said):
            why = _first_complaint(said) or _last_line(done.stderr) or _last_line(done.stdout)
            raise TunefaError(f"the call failed under ncu: {why or f'exit {done.returncode}'}")
    return said


def _said(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs ncu. Raises TunefaError if it cannot be started, or takes over LIMIT_S."""
    try:
        # The separators of numbers are those of the locale.
        return subprocess.run(
            words, env={**os.environ, "LC_ALL": "C.UTF-8"}, capture_output=True, text=True,
            errors="replace", timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise TunefaError(
            f"ncu took over {LIMIT_S:.0f} s, and was stopped: name a smaller workload"
        ) from error
    except OSError as error:
        raise TunefaError(f"{words[0]} cannot be started: {error.strerror}") from error


def _require_success(text: str) -> None:
    """Raises TunefaError for a known failure in ncu's log. Where it lacks a metric it profiles
    nothing, which is no failure of its own."""
    for phrase, why in _FAILURES.items():
        if phrase in text and not _ABOUT_METRICS.search(text):
            raise TunefaError(why)


def _first_complaint(text: str) -> str | None:
    found = re.search(r"^==(?:ERROR|WARNING)==\s*(.+)$", text, re.MULTILINE)
    return found and found[1].strip()


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].removeprefix("tunefa: ").strip()
