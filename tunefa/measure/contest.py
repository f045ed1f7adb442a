"""The contest: several ways to compute one workload, on the same tensors, in interleaved rounds.

Every contestant is checked before it is timed: a fast wrong answer has no row. In each round all
contestants run once with a cold L2, in an order that rotates, so that all see the same clocks and
temperatures. A contestant that raises, whatever it raises, loses only its own row, unless it has
ruined the CUDA context: then nothing of this process can run any more (CUDA Runtime API, sticky
errors), and `measured` raises ContextLost.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from tunefa.errors import TunefaError
from tunefa.measure import check, ops
from tunefa.measure.backward_contest import TrueGradients
from tunefa.measure.contestant import Contestant, checked
from tunefa.measure.monitor import Monitor
from tunefa.measure.peer import Make, Tensors
from tunefa.measure.score import Score
from tunefa.measure.timing import HostStopwatch, Stopwatch, latency_us
from tunefa.measure.verdict import Truth
from tunefa.spec.trial import MODES, Mode
from tunefa.spec.workload import Workload

__all__ = [
    "Contest",
    "ContextLost",
    "Maker",
    "Progress",
    "Score",
    "Settings",
    "Step",
    "measured",
    "run",
]
Maker = Make
"""Makes the call of one contestant."""
_LONGEST_REASON = 160


@dataclass(frozen=True)
class Settings:
    """The settings of a contest."""

    mode: Mode = "graph"
    """`graph`: replays of CUDA graphs, the device's time alone. `step`: the same between two other
    kernels. `eager`: ordinary calls; a sample is the longer of the times of the device and of the
    host."""
    rounds: int = 21
    seed: int = 0
    """The seed of the tensors."""
    device: str = "cuda"
    """"cuda", or "cpu", where a call is timed on the host, without a cold cache."""

    def __post_init__(self) -> None:
        """Raises TunefaError for settings that fit nothing."""
        if self.mode not in MODES:
            raise TunefaError(f"mode {self.mode!r} is none of {', '.join(MODES)}")
        if self.rounds < 1:
            raise TunefaError(f"rounds is {self.rounds}: give at least 1, such as 21")
        if self.device == "cpu" and self.mode != "eager":
            raise TunefaError(f"mode {self.mode} needs a CUDA device: use mode eager on the CPU")


@dataclass(frozen=True)
class Contest:
    """The results of all contestants on one workload."""

    workload: Workload
    mode: Mode
    scores: Mapping[str, Score]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The reasons that the other contestants have no score, in one sentence each."""
    device: Mapping[str, Any] = field(default_factory=dict)
    """The state of the device meanwhile: `Monitor.summary`."""

    def to_data(self) -> dict[str, Any]:
        """Returns plain data for JSON, which `from_data` reads."""
        scores = {
            name: {**asdict(score), "samples_us": list(score.samples_us)}
            for name, score in self.scores.items()
        }
        return {
            "workload": str(self.workload),
            "mode": self.mode,
            "scores": scores,
            "left_out": dict(self.left_out),
            "device": dict(self.device),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Contest:
        """Reads what `to_data` returned. Raises TunefaError for anything else."""
        try:
            scores = {
                name: Score(
                    tuple(float(sample) for sample in score["samples_us"]),
                    *(float(score["error"]), float(score["worst_row"]), bool(score["captured"])),
                )
                for name, score in data["scores"].items()
            }
            workload, mode = Workload.parse(data["workload"]), data["mode"]
            rest = dict(data["left_out"]), dict(data["device"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__} {error}"
            raise TunefaError(f"the contest has missing or wrong fields ({what})") from error
        bad = [name for name, score in scores.items() if not score.is_timed]
        if bad:
            raise TunefaError(f"the samples of {bad[0]} on {workload} are no times in us")
        return cls(workload, mode, scores, *rest)


@dataclass(frozen=True)
class Step:
    """The step of a contest that begins."""

    stage: Literal["check", "time"]
    contestant: str
    """The contestant that is checked; empty in rounds, where all are timed."""
    done: int
    total: int


Progress = Callable[[Step], None]
"""Is told about each step before it begins."""


class ContextLost(Exception):
    """A contestant has ruined the CUDA context, so that nothing more can run in this process."""

    def __init__(self, contestant: str, reason: str) -> None:
        """`contestant` is its name, empty where all were timed; `reason` is what CUDA said."""
        super().__init__(contestant, reason)
        self.contestant = contestant
        self.reason = reason


def run(
    workload: Workload,
    contestants: Mapping[str, Maker],
    settings: Settings,
    progress: Progress | None = None,
) -> Contest:
    """Returns the results of all contestants, by name.

    If one of them ruins the CUDA context, nobody has a score, and `left_out` names the culprit.
    Raises TunefaError where there is no such device.
    """
    try:
        return measured(workload, contestants, settings, progress)
    except ContextLost as lost:
        culprit = lost.contestant or "a contestant"
        why = f"{culprit} ended this process's use of the GPU before it could be timed"
        left_out = dict.fromkeys(contestants, why)
        if lost.contestant:
            left_out[lost.contestant] = lost.reason
        return Contest(workload, settings.mode, {}, left_out)


def measured(
    workload: Workload,
    contestants: Mapping[str, Maker],
    settings: Settings,
    progress: Progress | None = None,
) -> Contest:
    """Returns what `run` returns. Raises ContextLost where a contestant has ruined the context."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise TunefaError("a contest measures, and this machine has no GPU: run it on one that has")
    return _Contest(workload, settings, progress or (lambda _: None)).run(contestants)


class _Contest:
    """One contest while it runs."""

    def __init__(self, workload: Workload, settings: Settings, progress: Progress) -> None:
        self._workload, self._settings, self._progress = workload, settings, progress
        self._on_cuda = settings.device == "cuda"
        self._stopwatch = Stopwatch(settings.mode) if self._on_cuda else HostStopwatch()
        self._tensors = _tensors(workload, settings)
        is_backward = workload.op == "bwd"
        self._truth = (TrueGradients if is_backward else Truth).of(workload, self._tensors)

    def run(self, contestants: Mapping[str, Maker]) -> Contest:
        found: dict[str, Contestant] = {}
        left_out: dict[str, str] = {}
        total = len(contestants) + self._settings.rounds
        for place, (name, make) in enumerate(contestants.items()):
            self._progress(Step("check", name, place, total))
            entry = self._entry(name, make)
            if isinstance(entry, str):
                left_out[name] = entry
            else:
                found[name] = entry
        device = self._time(list(found.values()), len(contestants)) if found else {}
        scores = {name: entry.score() for name, entry in found.items()}
        return Contest(self._workload, self._settings.mode, scores, left_out, device)

    def _entry(self, name: str, make: Maker) -> Contestant | str:
        """Returns the contestant, or the reason why it is left out. Raises ContextLost."""
        try:
            return checked(make(self._workload, self._tensors), self._truth, self._stopwatch)
        except (Exception, SystemExit) as error:  # whatever the code of a peer raises
            reason = _reason(error)
        self._require_context(name, reason)
        if self._on_cuda:
            torch.cuda.empty_cache()  # it may have run out of memory
        return reason

    def _require_context(self, contestant: str, reason: str) -> None:
        """Raises ContextLost if the device answers no more: such errors are returned by all later
        calls."""
        if not self._on_cuda:
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise ContextLost(contestant, reason) from error

    def _time(self, entries: list[Contestant], before: int) -> dict[str, Any]:
        """Times all contestants in rounds, and returns the state of the device."""
        if not self._on_cuda:
            self._rounds(entries, before, lambda: None)
            return Monitor().summary()
        try:
            with Monitor() as watch:
                self._rounds(entries, before, watch.read)
        except RuntimeError as error:
            self._require_context("", _reason(error))
            raise
        return watch.summary()

    def _rounds(self, entries: list[Contestant], before: int, read: Callable[[], None]) -> None:
        rounds = self._settings.rounds
        for round_ in range(rounds):
            self._progress(Step("time", "", before + round_, before + rounds))
            start = round_ % len(entries)
            rotated = entries[start:] + entries[:start]
            times = self._stopwatch.times_us([entry.timed for entry in rotated])
            for entry, each in zip(rotated, times, strict=True):
                mode = self._settings.mode if entry.captured else "eager"
                entry.samples_us.append(latency_us(mode, *each))
            read()


def _tensors(workload: Workload, settings: Settings) -> Tensors:
    """The tensors of a contest: those of the op `bwd`, or the inputs of the forward pass."""
    if workload.op == "bwd":
        made: Tensors = ops.of(workload).tensors(workload, settings.device, settings.seed)
        return made
    made = check.tensors(workload, settings.device, settings.seed)
    inputs: Tensors = (*made[:3], *made[5:])
    if workload.dtype == "e4m3" and not workload.varlen:  # which has no descales
        for descale in inputs[3:]:
            descale.fill_(descale.flatten()[0])  # some peers have one for a whole tensor
    return inputs


def _reason(error: BaseException) -> str:
    """The first line of an error's message, with the error's name where it has none."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return textwrap.shorten(said, _LONGEST_REASON, placeholder=" ...")
