"""The bench: checks and times configs on the current device, one by one.

First a config must pass the correctness gate. Then a screening takes a few samples of its time. The
best of a search, its finalists, race against each other. A config that did not pass the gate is
never timed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tunefa.compile.contract import CompileError, unordered, unread
from tunefa.measure import launches, ops, race, timing
from tunefa.measure.gate import Gate, Probe
from tunefa.measure.objective import Raced
from tunefa.measure.race import Race
from tunefa.measure.racing import decided, footprint_of, plain, run_races, samples_of, screened
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Mode, Trial, identity


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

    def retime(self, trial: Trial) -> Trial:
        """Returns a trial that was judged with a few samples more."""
        more = screened(self._stopwatch, self._prepared(trial.config), math.inf)
        return replace(trial, samples_us=(*trial.samples_us, *more))

    def race(
        self,
        trials: Iterable[Trial],
        default: Config | None,
        until: float,
        least_us: float = 0.0,
    ) -> Raced:
        """Checks finalists on the workload's own shape, then races those that pass.

        `Trial.error` is that of normal inputs, which come last. The device needs `least_us`: this
        process may know no more than its arch.
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
        run, watch, refused = run_races(self._stopwatch, launches, pinned, until, least_us)
        raced = [replace(t, samples_us=samples_of(run, i)) for i, t in enumerate(right)]
        found = decided(raced, run, default, refused)
        certificate = {**(found.certificate or {}), "device": watch.summary()}
        return replace(found, trials=[*found.trials, *others], certificate=certificate)

    def race_kernels(
        self,
        own: Trial,
        rivals: Sequence[tuple[str, Trial]],
        until: float,
        least_us: float = 0.0,
    ) -> KernelRaceResult:
        """Races this kernel's winner against those of other kernels, which passed the gate too.

        `rivals` are (kernel, trial).
        """
        benches = [self.with_kernel(name) for name, _ in rivals]
        trials = [own, *(trial for _, trial in rivals), own]
        pairs = zip([self, *benches, self], trials, strict=True)
        launches = [bench._prepared(trial.config) for bench, trial in pairs]
        run, watch, refused = run_races(self._stopwatch, launches, frozenset(), until, least_us)
        decision = race.decide(run, None, footprint_of(trials))
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
                names[i]: plain(run.difference(i, decision.winner)) for i in losers
            }
        return KernelRaceResult(names[decision.winner], certificate, run)

    def with_kernel(self, kernel: str) -> Bench:
        """The bench of another kernel, on the same tensors."""
        made = copy.copy(self)
        made.case = replace(self.case, kernel=kernels.load(kernel))
        return made

    def _screen(self, trial: Trial, best_us: float) -> tuple[float, ...]:
        """Returns a few samples, in us; only the first ones where the config is much too slow.

        A config that is the same program as an earlier one gets the samples of that one.
        """
        made = launches.prepared(self.case, trial.config, self._tensors)
        runs = launches.what_runs(trial, made)
        samples_us = self._timed.get(runs, ())
        if not samples_us:
            launch = self._stopwatch.prepared(launches.timed(made, self._tensors))
            samples_us = screened(self._stopwatch, launch, best_us)
        if runs is not None:
            self._timed[runs] = samples_us
        return samples_us

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
