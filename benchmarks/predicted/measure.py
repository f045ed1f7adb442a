"""Measures on a device how good predictions are: a measured search, then one race of all answers.

The searches share the process that times and the compilers, as it takes seconds to start them. What
is known before the first search is compiled before it. While configs race, no compiler works.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.predicted.rows import Key, Measurement, Prediction, Racer
from tunefa.compile.pool import CompilePool, Pending
from tunefa.measure import launches, measured
from tunefa.measure.measured import LostProcess, Measured
from tunefa.measure.race import Interval, Race
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.request import Processes, Request, Result
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Mode, Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store import results
from tunefa.store.results import Store

MODE: Mode = "graph"
"""Only the device's time counts: that is what the cost model predicts."""
JUDGE_S = 40.0
"""The time limit for one config that the search did not try: to be compiled, checked and timed."""
RACE_S = 6.0
"""The time limit of a race, which takes 12 rounds at least."""


@dataclass(frozen=True)
class Session:
    """The device of this machine, and the processes that all workloads share."""

    target: Target
    processes: Processes
    folder: Path
    """The records of the searches are written there, in a folder for each workload."""

    def case(self, kernel: str, workload: Workload) -> Case:
        """The case of a kernel, by its name."""
        return Case(kernels.load(kernel), workload, self.target)

    def objective(self, case: Case) -> Measured:
        """The objective that times configs of a case in the shared processes."""
        make = measured.objective(case.arch, MODE)
        return make(case, None, self.processes.bench, self.processes.compilers)

    def warm_up(self, predictions: Sequence[Prediction], limit_s: float) -> int:
        """Starts the processes and compiles all answers; returns the number of configs."""
        pending: list[Pending] = []
        for each in predictions:
            workload = Workload.parse(each.workload)
            for answer in {each.key: each for each in each.answers.values()}.values():
                case = self.case(answer.kernel, workload)
                if not pending:
                    self.objective(case)  # it starts the process that times
                also, processes = launches.shape_to_check, self.processes.compilers
                pool = CompilePool(case, also=also, processes=processes)
                pending.append(pool.submit(answer.config))
        _, late = futures.wait([each.future for each in pending], limit_s)
        for future in late:
            future.cancel()
        return len(pending) - len(late)

    def measured(self, prediction: Prediction, budget: Budget) -> Measurement:
        """Searches, then races the winner and all answers on the same tensors.

        Raises ValueError if nothing can be raced or the process is lost, and TunefaError where the
        search does.
        """
        workload = Workload.parse(prediction.workload)
        result = self._searched(workload, budget)
        roles, configs = _roles(prediction, result)
        trials = self._trials(workload, configs, result)
        left_out = {} if result.record else {"search": "it found nothing that is right"}
        for key, trial in trials.items():
            if trial.outcome != "ok":
                left_out |= dict.fromkeys(roles.pop(key), f"{trial.outcome}: {trial.reason}")
        if not roles:
            raise ValueError("; ".join(f"{role}: {why}" for role, why in left_out.items()))
        keys = list(roles)
        first, *rivals = [(key[0], trials[key]) for key in keys]
        objective = self.objective(self.case(first[0], workload))
        raced = objective.race_kernels(first[1], rivals, time.monotonic() + RACE_S)
        if isinstance(raced, LostProcess):
            raise ValueError(f"the race was lost: {raced.reason}")
        apart = compared(raced.race)
        racers = [
            _racer(roles[key], key[0], configs[key], apart[i], _samples(raced.race, i))
            for i, key in enumerate(keys)
        ]
        names = ("noise_floor", "rounds", "device", "refused")
        race = {name: raced.certificate[name] for name in names if name in raced.certificate}
        used = _used(result, budget)
        return Measurement(prediction, racers, left_out, used, race, self._made_with(result))

    def _searched(self, workload: Workload, budget: Budget) -> Result:
        """The result of a measured search that knows the shipped records only.

        Raises KeyboardInterrupt if Ctrl-C has ended it.
        """
        store = Store([self.folder / str(workload), results.shipped_root()])
        serving = tuple(kernels.serving(workload, self.target.arch))
        workers = self.processes.compilers.count
        asked = Request(workload, self.target, True, serving, budget, workers=workers, mode=MODE)
        result = search.search(asked, store, shared=self.processes)
        if result.interrupted:
            raise KeyboardInterrupt
        return result

    def _trials(
        self, workload: Workload, wanted: Mapping[Key, Config], result: Result
    ) -> dict[Key, Trial]:
        """A trial of each config that is wanted: the search's, or a new one."""
        tried = {(each.kernel, identity(each.trial.config)): each.trial for each in result.finished}
        found = {key: tried[key] for key in wanted if key in tried}
        left: dict[str, list[Config]] = {}
        for key, config in wanted.items():
            if key not in found:
                left.setdefault(key[0], []).append(config)
        for kernel, configs in left.items():
            for trial in _judged(self.objective(self.case(kernel, workload)), configs):
                found[kernel, identity(trial.config)] = trial
        return found

    def _made_with(self, result: Result) -> dict[str, Any]:
        names = ("tunefa", "torch", "triton", "compiler", "driver", "date")
        made = result.record.provenance if result.record else {}
        versions = {name: made[name] for name in names if name in made}
        return {"device": self.target.device.name, **versions}


def _judged(objective: Measured, configs: Sequence[Config]) -> list[Trial]:
    """A trial of each config; what takes too long is a timeout."""
    found: list[Trial] = []
    for config in configs:
        objective.submit(config)
        late = Trial(config, "timeout", f"it took over {JUDGE_S:.0f} s")
        found.append(objective.next(JUDGE_S) or late)
    return found


def _roles(
    prediction: Prediction, result: Result
) -> tuple[dict[Key, list[str]], dict[Key, Config]]:
    """The roles of each distinct config, and the config; the search's winner is the first."""
    named: list[tuple[str, str, Config]] = []
    if result.record is not None:
        named.append(("search", result.record.kernel, result.record.config))
    named += [(role, each.kernel, each.config) for role, each in prediction.answers.items()]
    roles: dict[Key, list[str]] = {}
    configs: dict[Key, Config] = {}
    for role, kernel, config in named:
        roles.setdefault((kernel, identity(config)), []).append(role)
        configs.setdefault((kernel, identity(config)), config)
    return roles, configs


def compared(race: Race) -> list[Interval]:
    """The relative excess time of each racer over the best, without the first one's second name.

    The best is the one that the others are slower than in the median of their rounds. It is one of
    those that were not dropped, as a racer that was dropped ran at the beginning only.
    """
    lead = [race.difference(racer, race.leader) for racer in range(race.twin)]
    staying = [racer for racer in race.survivors if racer != race.twin]
    best = min(staying, key=lambda racer: lead[racer].estimate)
    return lead if best == race.leader else [race.difference(r, best) for r in range(race.twin)]


def _samples(race: Race, racer: int) -> list[float]:
    """The times of a racer in us, in the rounds that it was in."""
    times = (row[racer] for row in race.samples_us)
    return [us for us in times if us == us]


def _racer(
    roles: list[str], kernel: str, config: Config, apart: Interval, samples: Sequence[float]
) -> Racer:
    median_us = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4)
    spread = (high - low) / median_us
    excess = vars(apart)
    return Racer(
        roles, kernel, dict(config), median_us, spread,
        excess=excess["estimate"], low=excess["low"], high=excess["high"],
    )  # fmt: skip


def _used(result: Result, budget: Budget) -> dict[str, Any]:
    """The budget that the search was given, and what it used."""
    count: Mapping[str, int] = {
        name: sum(each.kernel == name for each in result.finished) for name in result.feasible
    }
    given = {"budget_s": budget.seconds, "budget_trials": budget.trials}
    return {**given, "elapsed_s": result.elapsed_s, "trials": dict(count)}
