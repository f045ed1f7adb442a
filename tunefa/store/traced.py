"""The file that `tunefa trace` writes: which attention workloads a program ran, and for how long.

    device: NVIDIA H200
    workloads:
    - {workload: fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal, weight: 1.25, calls: 640}
    other:
    - {what: attention with a mask, seconds: 0.02, calls: 4}

`weight` is the seconds of all calls together. Only `workload` and `weight` are needed, so that
people may write such files too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunefa.errors import TunefaError
from tunefa.spec import strict_yaml
from tunefa.spec.strict_yaml import Fields, Located
from tunefa.spec.workload import Workload


@dataclass
class Calls:
    """The calls of one workload."""

    seconds: float = 0.0
    """The time that they took in all; 0 where it is not known."""
    count: int = 0
    """The number of calls; 0 where it is not known."""

    def add(self, seconds: float, count: int = 1) -> None:
        """Adds calls."""
        self.seconds += seconds
        self.count += count


@dataclass
class Traced:
    """The attention of one program."""

    device: str = ""
    """The device that computed it, by its name; empty where that is not known."""
    workloads: dict[Workload, Calls] = field(default_factory=dict)
    other: dict[str, Calls] = field(default_factory=dict)
    """The calls that are no workload of tunefa, by what they are."""

    @property
    def heaviest(self) -> list[Workload]:
        """The workloads, those that took the most time first."""
        return sorted(self.workloads, key=lambda each: -self.workloads[each].seconds)

    def add(self, what: Workload | str, seconds: float, count: int = 1) -> None:
        """Adds calls of a workload, or of what is none."""
        if isinstance(what, str):
            self.other.setdefault(what, Calls()).add(seconds, count)
        else:
            self.workloads.setdefault(what, Calls()).add(seconds, count)

    def text(self) -> str:
        """Returns the content of the file."""
        data = {
            "device": self.device,
            "workloads": [
                {"workload": str(each), **_numbers("weight", self.workloads[each])}
                for each in self.heaviest
            ],
        }
        if self.other:
            data["other"] = [
                {"what": what, **_numbers("seconds", calls)} for what, calls in self.other.items()
            ]
        return strict_yaml.dump(data)


def merged(parts: Iterable[Traced]) -> Traced:
    """Returns the attention of several processes as that of one."""
    whole = Traced()
    for part in parts:
        whole.device = whole.device or part.device
        for each, calls in part.workloads.items():
            whole.add(each, calls.seconds, calls.count)
        for what, calls in part.other.items():
            whole.add(what, calls.seconds, calls.count)
    return whole


def read(path: Path, empty: bool = False) -> Traced:
    """Reads a file; `empty` says whether it may have no workloads.

    Raises TunefaError, with file and line, if it cannot be read.
    """
    fields = Fields(strict_yaml.load_file(path), str(path))
    found = Traced(fields.take("device", str, ""))
    for row in _rows(fields.take("workloads", list), "workloads", path, ("workload", "weight")):
        place = row.at("workload")
        text, weight = row.take("workload", str), _least_zero(row, "weight")
        calls = row.take("calls", int, 0)
        row.done()
        try:
            workload = Workload.parse(text)
        except TunefaError as error:
            raise TunefaError(f"{place}: {error}") from None
        found.add(workload, weight, calls)
    for row in _rows(fields.take("other", list, []), "other", path, ("what", "seconds")):
        found.add(row.take("what", str), _least_zero(row, "seconds"), row.take("calls", int, 0))
        row.done()
    fields.done()
    if not found.workloads and not empty:
        raise TunefaError(f"{path} has no workloads: trace a program that computes attention")
    return found


def _rows(data: Sequence[object], name: str, path: Path, needed: Sequence[str]) -> Iterable[Fields]:
    for number, row in enumerate(data, start=1):
        if not isinstance(row, dict):
            example = ", ".join(f"{key}: ..." for key in needed)
            raise TunefaError(f"{path}: entry {number} of {name!r} is {row!r}: write {{{example}}}")
        if missing := [key for key in needed if key not in row]:
            line = min(row.lines.values(), default=1) if isinstance(row, Located) else 1
            others = ", ".join(repr(key) for key in row if key not in (*needed, "calls"))
            known = f"; {others} is no key" if others else ""
            raise TunefaError(f"{path}:{line}: key {missing[0]!r} is missing: add it{known}")
        yield Fields(row, str(path))


def _least_zero(row: Fields, key: str) -> float:
    value: float = row.take(key, float)
    if value < 0:
        raise TunefaError(f"{row.at(key)}: {key!r} is {value:g}: give seconds, 0 or more")
    return value


def _numbers(name: str, calls: Calls) -> dict[str, float | int]:
    return {name: float(f"{calls.seconds:.6g}"), "calls": calls.count}
