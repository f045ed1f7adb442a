"""A portfolio: few configs that serve many workloads, each nearly as well as its own best config.

A config covers a workload if it was measured for it and its time there is at most the regret above
the fastest that was measured there. What was not measured covers nothing: no time is guessed.
The fewest configs that cover all workloads are a minimum set cover (`tunefa.store.set_cover`).

As guesses are left out, more measurements could make a portfolio smaller. `Choices.least_possible`
says how far: it is the bound if every config were good wherever it was not measured and the rules
allow it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.trial import Config, Mode, Trial
from tunefa.spec.workload import Workload
from tunefa.store import set_cover
from tunefa.store.landscape import Key, Landscape
from tunefa.store.record import Record
from tunefa.store.set_cover import Cover

NOTE = "portfolio"
"""The key in the provenance of a portfolio's records that says what the choice was."""
_EQUAL = 1e-9
"""A regret of 0 means the fastest; rounding must not exclude it."""


@dataclass(frozen=True)
class Measured:
    """The configs that were measured for one workload in one mode."""

    workload: Workload
    mode: Mode
    times_us: Mapping[Key, float]
    trials: Mapping[Key, Trial]
    """The last trial of each of these configs."""
    failed: frozenset[Key]
    """The configs that were tried and are not right."""
    provenance: Mapping[str, Mapping[str, Any]]
    """By kernel, the versions that its trials were made with."""

    @cached_property
    def regrets(self) -> Mapping[Key, float]:
        """The relative excess time of each config over the fastest, which has 0; 0.02 is 2 %."""
        best = min(self.times_us.values())
        return {key: time / best - 1.0 for key, time in self.times_us.items()}


def measured(landscapes: Sequence[Landscape], names: Sequence[str] = ()) -> list[Measured]:
    """Returns what landscapes of one device hold, by workload, in the order of their texts.

    Only kernels with these names count; without names, all.

    Of several landscapes of a workload, the newest says the mode, and others in another mode are
    left out. Of each kernel, those with the newest one's source count; of several times of a config
    the newest. Landscapes whose times are predicted are left out.
    """
    by_workload: dict[Workload, list[Landscape]] = {}
    for each in sorted(landscapes, key=_date, reverse=True):
        if each.mode is not None:
            by_workload.setdefault(each.workload, []).append(each)
    found = [_merged(own, names) for own in by_workload.values()]
    return sorted((each for each in found if each.times_us), key=lambda each: str(each.workload))


def _date(landscape: Landscape) -> str:
    return max((str(made.get("date", "")) for made in landscape.provenance.values()), default="")


def _merged(newest_first: Sequence[Landscape], names: Sequence[str]) -> Measured:
    mode = newest_first[0].mode
    assert mode is not None
    made: dict[str, Mapping[str, Any]] = {}
    times: dict[Key, float] = {}
    trials: dict[Key, Trial] = {}
    failed: set[Key] = set()
    for each in (landscape for landscape in newest_first if landscape.mode == mode):
        wanted = {k: made for k, made in each.provenance.items() if not names or k in names}
        for kernel, provenance in wanted.items():
            newest = made.setdefault(kernel, provenance)
            if newest.get("source_hash") != provenance.get("source_hash"):
                continue
            own = {(kernel, config): time for config, time in each.times_us(kernel).items()}
            times = {**own, **times}
            trials = {**{key: each.last[key] for key in own}, **trials}
            failed |= {k for k in each.last if k[0] == kernel and k not in own}
    return Measured(
        newest_first[0].workload, mode, times, trials, frozenset(failed - times.keys()), made
    )


@dataclass(frozen=True)
class Portfolio:
    """Configs that cover all workloads within a regret, and which workload runs which."""

    target: Target
    workloads: Sequence[Measured]
    regret: float
    configs: Sequence[Key]
    bound: int
    """No portfolio of what was measured has fewer configs."""

    @property
    def is_exact(self) -> bool:
        """Whether it is proved that no portfolio of what was measured has fewer configs."""
        return self.bound == len(self.configs)

    @property
    def dispatch(self) -> dict[Workload, Key]:
        """The config that each workload runs: the fastest of the portfolio's that it has a time
        for."""
        found = {}
        for each in self.workloads:
            there = [key for key in self.configs if key in each.times_us]
            found[each.workload] = min(there, key=lambda key: each.times_us[key])
        return found

    @property
    def regrets(self) -> list[float]:
        """The regret of each workload, in their order."""
        dispatch = self.dispatch
        return [each.regrets[dispatch[each.workload]] for each in self.workloads]

    def config(self, key: Key) -> Config:
        """Returns the config with its parameters in the order of the kernel's space."""
        return next(each.trials[key].config for each in self.workloads if key in each.trials)

    def records(self) -> list[Record]:
        """Returns a record for each workload, with the config of the portfolio that it runs."""
        dispatch = self.dispatch
        return [self._record(each, dispatch[each.workload]) for each in self.workloads]

    def _record(self, own: Measured, key: Key) -> Record:
        trial, kernel = own.trials[key], key[0]
        median_us = trial.median_us or own.times_us[key]
        kept = trial.resources and replace(trial.resources, planned=None, code=None)
        note = {
            "configs": len(self.configs),
            "limit": self.regret,
            "regret": round(own.regrets[key], 6),
            "workloads": len(self.workloads),
        }
        return Record(
            kernel=kernel,
            arch=self.target.arch.name,
            device=self.target.device.name,
            workload=own.workload,
            config=dict(trial.config),
            objective="measured",
            median_us=median_us,
            tflops=own.workload.flops / median_us / 1e6,
            resources=kept,
            certificate=None,
            provenance={**own.provenance[kernel], NOTE: note},
            mode=own.mode,
        )


MOST_REGRET = 0.5
"""The end of a curve. Configs that are slower by more serve nobody."""


class Choices:
    """The portfolios that can be made of what was measured for some workloads on one device."""

    def __init__(self, target: Target, workloads: Sequence[Measured]) -> None:
        """Raises TunefaError if there is no workload."""
        if not workloads:
            raise TunefaError("no workload was measured: there is no portfolio to choose")
        self.target, self.workloads = target, workloads
        self.keys: list[Key] = sorted({k for each in workloads for k in each.times_us}, key=repr)
        """Every config that is right for at least one workload."""
        self._place = {key: place for place, key in enumerate(self.keys)}
        self._pairs = sorted(
            (by, self._place[key], bit)
            for bit, each in enumerate(workloads)
            for key, by in each.regrets.items()
        )
        """(regret, place of a config, workload) of all that was measured."""
        self._covers: dict[float, Cover] = {}

    def within(self, regret: float) -> Portfolio:
        """Returns the portfolio with the fewest configs within a regret: 0.02 is 2 %.

        Of those with equally many, it has the least mean regret.
        """
        cover = self._cover(regret)
        near = [
            {self._place[key]: by for key, by in each.regrets.items() if by <= regret + _EQUAL}
            for each in self.workloads
        ]
        chosen = set_cover.cheapest(near, len(cover.chosen)) or cover.chosen
        keys = [self.keys[place] for place in chosen]
        return Portfolio(self.target, self.workloads, regret, _ranked(keys, self), cover.bound)

    def curve(self) -> list[Portfolio]:
        """Returns the portfolio with the least greatest regret for each number of configs.

        It ends with the best config of every workload. Numbers that cover all workloads only with a
        regret above `MOST_REGRET`, or not at all, are left out.
        """
        steps = sorted({by for by, *_ in self._pairs if by <= MOST_REGRET})
        sizes: dict[int, float] = {}

        def fill(low: int, high: int) -> None:
            """Notes the least regret of each size between two steps, whose sizes are known."""
            if high - low <= 1 or size(low) == size(high):
                return
            middle = (low + high) // 2
            sizes[size(middle)] = min(sizes.get(size(middle), math.inf), steps[middle])
            fill(low, middle)
            fill(middle, high)

        def size(place: int) -> int:
            return len(self._cover(steps[place]).chosen)

        for place in (len(steps) - 1, 0):
            sizes[size(place)] = steps[place]
        fill(0, len(steps) - 1)
        return [self.within(sizes[count]) for count in sorted(sizes)]

    def least_possible(self, regret: float) -> int:
        """Returns the bound if every config were good for each workload that it was not measured
        for, where the rules of its space allow it."""
        maybe = [
            sum(
                1 << bit
                for bit, each in enumerate(self.workloads)
                if each.regrets.get(key, math.inf) <= regret + _EQUAL or self._is_open(each, key)
            )
            for key in self.keys
        ]
        return set_cover.fewest(maybe, (1 << len(self.workloads)) - 1).bound

    @cached_property
    def unmeasured(self) -> int:
        """The number of untimed pairs of a workload and a config that the rules allow for it."""
        return sum(self._is_open(each, key) for each in self.workloads for key in self.keys)

    def _is_open(self, own: Measured, key: Key) -> bool:
        """Whether a config may be good for a workload, as it was not tried and can run."""
        if key in own.times_us or key in own.failed:
            return False
        return (own.workload, key) in self._allowed

    @cached_property
    def _allowed(self) -> frozenset[tuple[Workload, Key]]:
        """The workloads and configs that go together, by the rules of the installed kernels."""
        arch, known = self.target.arch, set(kernels.names())
        tried = {key: trial for each in self.workloads for key, trial in each.trials.items()}
        found = set()
        for name in {kernel for kernel, _ in self.keys} & known:
            kernel = kernels.load(name)
            serving = [w.workload for w in self.workloads if not kernel.why_not(w.workload, arch)]
            for key, trial in tried.items():
                if key[0] == name:
                    config = trial.config
                    found |= {(w, key) for w in serving if not kernel.refusal(config, w, arch)}
        return frozenset(found)

    def _cover(self, regret: float) -> Cover:
        if regret not in self._covers:
            sets = [0] * len(self.keys)
            near = bisect.bisect(self._pairs, (regret + _EQUAL, len(self.keys), 0))
            for _, place, bit in self._pairs[:near]:
                sets[place] |= 1 << bit
            self._covers[regret] = set_cover.fewest(sets, (1 << len(self.workloads)) - 1)
        return self._covers[regret]


def _ranked(keys: Iterable[Key], choices: Choices) -> list[Key]:
    """Returns the configs, those that serve the most workloads first."""
    listed = list(keys)
    served = list(Portfolio(choices.target, choices.workloads, 0.0, listed, 0).dispatch.values())
    return sorted(set(served), key=lambda key: (-served.count(key), repr(key)))


def mean_regret(portfolio: Portfolio) -> float:
    """Returns the mean of the workloads' regrets."""
    return fmean(portfolio.regrets)
