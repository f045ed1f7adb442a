"""The bench: checks and times configs on the current device, one by one.

First a config must pass the correctness gate. Then a screening takes a few samples of its time. The
best of a search, its finalists, race against each other. A config that did not pass the gate is
never timed.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tunefa.compile.contract import CompileError, unordered, unread
from tunefa.measure import launches, ops, race, timing
from tunefa.measure.gate import Gate, Probe
from tunefa.measure.monitor import Monitor
from tunefa.measure.objective import Raced
from tunefa.measure.race import Decision, Interval, Race
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Mode, Trial, identity

SCREEN_SAMPLES = 5
FIRST_SAMPLES = 2
"""Samples after which a screening may end. Compilers keep the host's cores busy, so the host may
pause between the stopwatch's start and the launch; a single sample could include such a pause."""
HOPELESS = 2.0
"""A config that takes this many times the best time so far is not sampled further."""
TRIES = 2
"""Races that are tried on a disturbed device before the last is reported as not certified."""


@dataclass(frozen=True)
class KernelRaceResult:
    """The result of a race between the winners of several kernels."""

    kernel: str
    """The kernel that won."""
    certificate: dict[str, Any]
    race: Race = field(default_factory=lambda: Race(2), repr=False)
    """The samples: its own config is racer 0, its rivals follow in their order."""


class Bench:
    """One kernel and workload on the device, with tensors, gate and stopwatch."""

    def __init__(self, case: Case, mode: Mode) -> None:
        self.case = case
        self._torch_device = case.arch.torch_device
        self._stopwatch = timing.Stopwatch(mode, self._torch_device)
        self._op = ops.of(case.workload)
        self._tensors = self._op.tensors(case.workload, self._torch_device)
        self._gate = Gate(self._torch_device)
        self._timed: dict[Hashable, tuple[float, ...]] = {}
        """The samples of the programs that were screened."""

    def judge(self, trial: Trial, best_us: float) -> Trial:
        """Returns a compiled trial with its error and a few samples.

        `best_us` is the best time so far; a config that is much slower gets fewer samples.
        """
        shape = launches.shape_to_check(self.case, trial.config)
        probe = self._gate.probe(shape, unread(self.case.kernel))
        trial = self._checked(trial, probe)
        if trial.outcome != "ok":
            return trial
        return replace(trial, samples_us=self._screen(trial, best_us))

    def race(self, trials: Iterable[Trial], default: Config | None, until: float) -> Raced:
        """Checks finalists on the workload's own shape, then races those that pass.

        `Trial.error` is that of normal inputs, which come last.
        The race ends early when `time.monotonic` is `until`, but not before it has the rounds that
        a certificate needs.
        """
        judged = list(trials)
        for kind in self._op.kinds_of_finalists(self.case.workload):
            probe = self._gate.large_probe(self.case.workload, kind, unread(self.case.kernel))
            judged = [self._checked(t, probe) if t.outcome == "ok" else t for t in judged]
            del probe  # before the next one is made: the device may not hold both
        right = [trial for trial in judged if trial.outcome == "ok"]
        others = [trial for trial in judged if trial.outcome != "ok"]
        if not right:
            return Raced(others)
        right, again = self._distinct(right, default)
        others = [*again, *others]
        racers = [*right, right[0]]
        launches = [self._prepared(trial.config) for trial in racers]
        pinned = frozenset(i for i, trial in enumerate(right) if trial.config == default)
        run, watch, refused = self._run_races(launches, pinned, until)
        raced = [replace(t, samples_us=_samples_of(run, i)) for i, t in enumerate(right)]
        found = _decided(raced, run, default, refused)
        certificate = {**(found.certificate or {}), "device": watch.summary()}
        return replace(found, trials=[*found.trials, *others], certificate=certificate)

    def race_kernels(
        self, own: Trial, rivals: Sequence[tuple[str, Trial]], until: float
    ) -> KernelRaceResult:
        """Races this kernel's winner against those of other kernels, which passed the gate too.

        `rivals` are (kernel, trial).
        """
        benches = [self.with_kernel(name) for name, _ in rivals]
        trials = [own, *(trial for _, trial in rivals), own]
        pairs = zip([self, *benches, self], trials, strict=True)
        launches = [bench._prepared(trial.config) for bench, trial in pairs]
        run, watch, refused = self._run_races(launches, frozenset(), until)
        decision = race.decide(run, None, _footprint(trials))
        certificate = {
            "decision": decision.why,
            "noise_floor": round(decision.noise_floor, 5),
            "rounds": len(run.samples_us),
            "device": watch.summary(),
        }
        names = [self.case.kernel.name, *(name for name, _ in rivals)]
        losers = [i for i in range(len(names)) if i != decision.winner]
        if refused:
            certificate["refused"] = refused
        else:
            certificate["slower_by"] = {
                names[i]: _plain(run.difference(i, decision.winner)) for i in losers
            }
        return KernelRaceResult(names[decision.winner], certificate, run)

    def with_kernel(self, kernel: str) -> Bench:
        """The bench of another kernel, on the same tensors."""
        made = copy.copy(self)
        made.case = replace(self.case, kernel=kernels.load(kernel))
        return made

    def _run_races(
        self, launches: list[timing.BoundLaunch], pinned: frozenset[int], until: float
    ) -> tuple[Race, Monitor, str | None]:
        """Returns the last race, its monitor, and why it is not certified; None if it is."""
        tries = 0
        while tries < TRIES:
            run, watch = self._run_race(launches, pinned, until)
            tries += 1
            if watch.disturbance is None or time.monotonic() >= until:
                break
        return run, watch, watch.disturbance and f"{watch.disturbance} in {_races(tries)}"

    def _run_race(
        self, launches: list[timing.BoundLaunch], pinned: frozenset[int], until: float
    ) -> tuple[Race, Monitor]:
        """Races prepared launches, the last of which is the first one again."""
        with Monitor() as watch:

            def time_us(order: Sequence[int]) -> list[float]:
                samples = self._stopwatch.once_us([launches[racer] for racer in order])
                watch.read()
                return samples

            time_us(range(len(launches)))  # a warm-up, which is no round
            return race.run(len(launches), pinned, time_us, until), watch

    def _screen(self, trial: Trial, best_us: float) -> tuple[float, ...]:
        """Returns a few samples, in us; only the first ones where the config is much too slow.

        A config that is the same program as an earlier one gets the samples of that one.
        """
        made = launches.prepared(self.case, trial.config, self._tensors)
        runs = launches.what_runs(trial, made)
        samples_us = self._timed.get(runs, ())
        if not samples_us:
            launch = self._stopwatch.prepared(launches.timed(made, self._tensors))
            samples_us = self._sampled(launch, best_us)
        if runs is not None:
            self._timed[runs] = samples_us
        return samples_us

    def _sampled(self, launch: timing.BoundLaunch, best_us: float) -> tuple[float, ...]:
        times = self._stopwatch.times_us([launch] * FIRST_SAMPLES)
        if min(device_us for device_us, _ in times) < HOPELESS * best_us:
            times += self._stopwatch.times_us([launch] * (SCREEN_SAMPLES - FIRST_SAMPLES))
        # Compilers run at the same time: the host's shortest time is the one that they disturb
        # least.
        host_us = min(host_us for _, host_us in times)
        mode = self._stopwatch.mode
        return tuple(timing.latency_us(mode, device_us, host_us) for device_us, _ in times)

    def _distinct(
        self, right: Sequence[Trial], default: Config | None
    ) -> tuple[list[Trial], list[Trial]]:
        """Returns the first trial of each program, the default before all others, and the rest."""
        first: dict[Hashable, Trial] = {}
        for trial in sorted(right, key=lambda trial: trial.config != default):
            made = launches.prepared(self.case, trial.config, self._tensors)
            first.setdefault(launches.what_runs(trial, made) or identity(trial.config), trial)
        kept = [trial for trial in right if any(trial is each for each in first.values())]
        return kept, [trial for trial in right if not any(trial is each for each in kept)]

    def _prepared(self, config: Config) -> timing.BoundLaunch:
        """Prepares the config's launch on the workload's own shape for timing."""
        made = launches.prepared(self.case, config, self._tensors)
        return self._stopwatch.prepared(launches.timed(made, self._tensors))

    def _checked(self, trial: Trial, probe: Probe) -> Trial:
        """Returns the trial with its error, or with the reason why it is not right."""
        made = probe.tensors
        try:
            if trial.resources is None:  # the compile pool has not compiled it
                compiled = launches.compiled_for(self.case, trial.config, self._tensors)
                trial = replace(trial, resources=compiled.resources, compile_s=compiled.seconds)
            there = replace(self.case, workload=probe.shape)
            launch = launches.launch(there, trial.config, made)
            compared = self._gate.compare(launch, probe, unordered(there, trial.config))
        except CompileError as error:
            return replace(trial, outcome="compile_failed", reason=str(error))
        if compared.repeatable and compared.passed:
            return replace(trial, error=compared.error)
        steady = compared.repeatable or compared.strayed
        outcome: Literal["wrong", "unstable"] = "wrong" if steady else "unstable"
        return replace(trial, outcome=outcome, reason=compared.reason, error=compared.error)


def _samples_of(run: Race, racer: int) -> tuple[float, ...]:
    return tuple(row[racer] for row in run.samples_us if not math.isnan(row[racer]))


def _decided(raced: list[Trial], run: Race, default: Config | None, refused: str | None) -> Raced:
    """The result of a race of these trials; `refused` says why it is not certified, None if it is.

    Where it is not certified the default wins, or the race's leader if there is no default.
    """
    place = next((i for i, trial in enumerate(raced) if trial.config == default), None)
    decision = race.decide(run, place, _footprint(raced))
    if refused is not None:
        decision = _uncertified(run, decision, place, refused)
    certificate = _certificate(raced, run, decision)
    if refused is not None:
        certificate["refused"] = refused
        certificate.get("runner_up", {}).pop("slower_by", None)
    others = (i for i in range(len(raced)) if i != decision.winner)
    ranked = [decision.winner, *sorted(others, key=run.median_us)]
    return Raced([raced[i] for i in ranked], raced[decision.winner], certificate)


def _footprint(raced: Sequence[Trial]) -> Callable[[int], tuple[int, ...]]:
    """Returns a sort key for racers that are equally fast: shared memory first, then registers."""

    def footprint(racer: int) -> tuple[int, ...]:
        used = raced[racer].resources
        return (used.smem_bytes or 0, used.registers or 0, racer) if used else (0, 0, racer)

    return footprint


def _uncertified(run: Race, decision: Decision, default: int | None, why: str) -> Decision:
    """A decision without a claim: the default wins, or the leader if there is no default."""
    if default is None:
        return replace(decision, why=f"the leader is kept, not certified: {why}", gain=None)
    others = sorted(set(range(run.twin)) - {default}, key=run.median_us)
    return replace(
        decision,
        winner=default,
        why=f"the default is kept: {why}",
        gain=None,
        runner_up=others[0] if others else None,
    )


def _races(count: int) -> str:
    return "the race" if count == 1 else f"{count} races"


def _certificate(raced: list[Trial], run: Race, decision: Decision) -> dict[str, Any]:
    """The statistics of a race as plain data: relative differences with 95 % intervals."""
    certificate: dict[str, Any] = {
        "decision": decision.why,
        "gain_over_default": _plain(decision.gain),
        "noise_floor": round(decision.noise_floor, 5),
        "rounds": len(run.samples_us),
        "racers": run.racers - 1,
        "dropped": len(run.dropped),
    }
    second = decision.runner_up
    if second is not None:
        certificate["runner_up"] = {
            "config": dict(raced[second].config),
            "slower_by": _plain(run.difference(second, decision.winner)),
        }
    return certificate


def _plain(interval: Interval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {name: round(value, 5) for name, value in vars(interval).items()}
