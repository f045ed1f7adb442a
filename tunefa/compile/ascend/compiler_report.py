"""The compiler's report on one kernel: whether it fits the memories of a core, and by how much.

It is read from the output of bishengir-compile 1.1.0 and 1.2.0. The last step, `hivmc`, is closed
and only in CANN. Without it, the compiler plans all memories, looks for `hivmc` a second time and
stops. So a kernel fits if the compiler looks for `hivmc` twice; then 1.1.0 exits with 0, 1.2.0
with 1.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tunefa.spec.rounding import ceil_div

Status = Literal["fits", "overflow", "error", "crash", "timeout"]

_MEMORIES = {"ub": "ub", "cbuf": "l1", "cc": "l0c"}
"""tunefa's names of memories, by the compiler's names."""
_OVERFLOW = re.compile(r"\b(ub|cbuf|cc) overflow, requires (\d+) bits while (\d+) bits available")
_NOT_FOUND = "Cannot find hivmc"
_NOTE = re.compile(r"^\[NOTE\] Due to .*?; compilation (?:then|still) ", re.MULTILINE)
_RETRYING = "and retrying compilation"
_SET = re.compile(r"set ([\w-]+) to (true|false)")
_FAILED_PASS = re.compile(r"error: Failed to run BiShengHIR pipeline")
_ERROR = re.compile(r"(?:\berror: |\[ERROR\] |LLVM ERROR|Assertion)(?!Failed to run BiSheng).*")
_UNTELLING = ("hivmc", " overflow, requires ")
# These parts differ between runs of 1.2.0 on the same program: numbers of values, the order of
# workspaces, and the folder.
_NUMBERED = re.compile(r"%\w+(?::\d+)?(?:#\d+)?|#map\d*")
_ACCIDENTAL = ("affine_map<", "loc(", "hivmc")
_WORKSPACE = re.compile(
    r"infer_workspace_shape_function\(\) -> index.*?arith\.constant (\d+) : index", re.DOTALL
)


@dataclass(frozen=True)
class Memory:
    """One memory of a core, as the compiler planned it."""

    available_bytes: int | None = None
    required_bytes: int | None = None
    """The bytes that an overflowing kernel needs, `available_bytes` or more. None if it fits."""
    peak_bytes: int | None = None
    """The highest address in use; None if the compiler made no plan."""
    sum_bytes: int | None = None
    """The sum of all buffers, without reuse of places. It grows with the tile even where the peak
    does not, because the planner reuses places only if it must."""

    @property
    def overflows(self) -> bool:
        """Whether the kernel does not fit this memory."""
        return self.required_bytes is not None


@dataclass(frozen=True)
class CompilerReport:
    """The result of compiling one kernel."""

    status: Status
    reason: str = ""
    """The reason that it does not fit or does not compile; empty if it fits."""
    memories: Mapping[str, Memory] = field(default_factory=dict, hash=False)
    """By name: `ub` (of one vector core), `l1` and `l0c`."""
    workspace_bytes: int | None = None
    """Global memory of one core, for data that cube unit and vector cores exchange."""
    changed: Mapping[str, bool] = field(default_factory=dict, hash=False)
    """Flags that the compiler itself changed after an overflow, and their values: the program was
    compiled with them, not with the requested ones."""
    retries: int = 0
    """The number of times that it tried again; 1.1.0 does not report with which flags."""
    code: str | None = None
    """A hash of the compiled program; None if there is none."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Output:
    """The output of one run of the compiler."""

    returncode: int
    stderr: str
    plans: tuple[Any, ...] = ()
    """The content of its memory_info_*.json files."""


def from_output(output: Output, others: Iterable[Output] = ()) -> CompilerReport:
    """Returns the report of a run; `others` are runs of the same kernel with more overflows."""
    log, plans = output.stderr, _planned(output.plans)
    changed, failures = _changed(log), len(_FAILED_PASS.findall(log))
    if output.returncode < 0 or output.returncode >= 128:
        reason = f"the compiler died with exit code {output.returncode}"
        return CompilerReport("crash", reason)
    if output.returncode == 0 or log.count(_NOT_FOUND) >= 2:
        return CompilerReport("fits", "", plans, None, changed, failures or log.count(_RETRYING))
    retries = log.count(_RETRYING) or max(0, failures - 1)
    for each in (output, *others):
        plans |= {k: v for k, v in _planned(each.plans).items() if v.overflows or k not in plans}
        for scope, required, available in _OVERFLOW.findall(each.stderr):
            plans[_MEMORIES[scope]] = _overflow(required, available)
    if any(memory.overflows for memory in plans.values()):
        return CompilerReport("overflow", _in_words(plans), plans, None, changed, retries)
    return CompilerReport("error", _first_error(log), plans, None, changed, retries)


def workspace_bytes(ir: str) -> int | None:
    """Returns the size of the workspace in bytes, from the function in `ir` that returns it."""
    found = _WORKSPACE.search(ir)
    return int(found[1]) if found else None


def code(ir: str) -> str:
    """Returns a hash of the last IR in `ir`, which is independent of numbers of values."""
    last = ir[ir.rfind("IR Dump After") :]
    lines = (_NUMBERED.sub("%", line).strip() for line in last.splitlines())
    telling = sorted(line for line in lines if not any(each in line for each in _ACCIDENTAL))
    return hashlib.sha256("\n".join(telling).encode()).hexdigest()[:16]


def read_plan(text: str) -> Any:
    """Returns the content of a memory_info_*.json; None if a crash left it incomplete."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _planned(plans: Iterable[Any]) -> dict[str, Memory]:
    """Returns the memories in the plans of one run."""
    memories: dict[str, Memory] = {}
    for record in (record for plan in plans if plan for record in plan["Record"]):
        name = _MEMORIES.get(record["scope"])
        if name is None:
            continue
        if found := _OVERFLOW.search(record["error_info"]):
            memories[name] = _overflow(found[2], found[3])
            continue
        buffers = record["memory_info_array"]
        sizes = [(buffer["extent"] + 7) // 8 for buffer in buffers]
        places = [(buffer["offset"], size) for buffer, size in zip(buffers, sizes, strict=True)]
        ends = [offset + size for offsets, size in places for offset in offsets]
        total = sum(len(offsets) * size for offsets, size in places)
        memories[name] = Memory(peak_bytes=max(ends, default=0), sum_bytes=total)
    return memories


def _overflow(required_bits: str, available_bits: str) -> Memory:
    return Memory(int(available_bits) // 8, ceil_div(int(required_bits), 8))


def _changed(log: str) -> dict[str, bool]:
    """Returns the flags that the compiler changed, from the last line about them."""
    for line in reversed(log.splitlines()):
        if _NOTE.match(line):
            return {flag: value == "true" for flag, value in _SET.findall(line)}
    return {}


def _in_words(memories: Mapping[str, Memory]) -> str:
    return ", ".join(
        f"{name.upper()} overflow: {memory.required_bytes:,} of {memory.available_bytes:,} B"
        for name, memory in memories.items()
        if memory.overflows
    )


def _first_error(log: str) -> str:
    """Returns the first error in a log, in at most 300 characters."""
    lines = (line for line in log.splitlines() if not any(each in line for each in _UNTELLING))
    found = next((match for line in lines if (match := _ERROR.search(line))), None)
    return " ".join(found[0].split())[:300] if found else "the compiler fails and gives no reason"
