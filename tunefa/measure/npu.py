"""Objectives for NPUs that are not there: a latency model says how long a config takes.

`Modelled` asks the vendor's compiler whether a config fits the memories; `Estimated` uses formulas,
where there is no compiler. tunefa/costmodel/npu.py says how far the latency model can be trusted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tunefa.compile.pool import Rank
from tunefa.compile.workers import Workers
from tunefa.costmodel import npu as npu_model
from tunefa.measure.objective import Raced
from tunefa.measure.predicted import Predicted
from tunefa.spec.arch import NpuArch
from tunefa.spec.arch_catalog import npu
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.tiling import NpuTiling
from tunefa.spec.trial import Config, MemoryPlan, Resources, Trial, time_us

_MULTIBUFFER = "enable-auto-multi-buffer"


class Modelled(Predicted):
    """Compiles for the NPU and takes the time from the latency model."""

    def judge(self, trial: Trial) -> Trial:
        """Returns a compiled trial with its time."""
        if trial.outcome != "ok" or trial.resources is None:
            return trial
        tiling = as_compiled(self.case.npu_tiling(trial.config), trial.resources)
        modelled_us = npu_model.time_us(self.case.workload, self.case.device, tiling)
        return replace(trial, predicted_us=modelled_us)

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """The best wins unchecked; among equals the default, then the first of the space."""
        self._abandon()
        return _best(self.case.kernel, trials, default)


class Estimated:
    """Compiles nothing: formulas say whether a config fits, the latency model how long it takes."""

    width = 1
    reserve_s = 0.0

    def __init__(self, case: Case) -> None:
        self.case, self._arch = case, npu(case.arch)
        self._pending: deque[Config] = deque()

    def __enter__(self) -> Estimated:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def prepare(self, config: Config, compilers: Workers) -> None:
        """Does nothing: formulas take no time."""

    def is_prepared(self, config: Config) -> bool:
        """Returns True: formulas take no time."""
        return True

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        """Queues a config."""
        self._pending.append(config)

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """Returns the trial of the config that was queued first."""
        config = self._pending.popleft()
        tiling = self.case.npu_tiling(config)
        resources = estimated(tiling, self._arch)
        if over := lacking(resources, self._arch):
            return Trial(config, "refused", over, resources)
        modelled_us = npu_model.time_us(self.case.workload, self.case.device, tiling)
        return Trial(config, "ok", resources=resources, predicted_us=modelled_us)

    def is_ready(self, wait_s: float) -> bool:
        """Returns True: formulas take no time."""
        return True

    def settle(self) -> Trial | None:
        """Returns None: nothing runs ahead."""
        return None

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """The best wins unchecked, in the same order as for `Modelled`."""
        self._pending.clear()
        return _best(self.case.kernel, trials, default)


def as_compiled(tiling: NpuTiling, resources: Resources | None) -> NpuTiling:
    """The tiling with the changes that the compiler made so that it fits."""
    planned = resources.planned if resources else None
    cleared = planned is not None and planned.changed.get(_MULTIBUFFER) is False
    return replace(tiling, multibuffer=False) if cleared else tiling


def estimated(tiling: NpuTiling, arch: NpuArch) -> Resources:
    """The resources that formulas expect a config to need."""
    needed = _needed(tiling)
    excess = {
        name: (needed[name] - available) / available for name, available in arch.capacities.items()
    }
    return Resources(
        ub_bytes=needed["ub"],
        l1_bytes=needed["l1"],
        l0c_bytes=needed["l0c"],
        planned=MemoryPlan(excess),
    )


def lacking(resources: Resources, arch: NpuArch) -> str:
    """The memories that the estimate exceeds, in words; empty if there are none."""
    needed = {"ub": resources.ub_bytes, "l1": resources.l1_bytes, "l0c": resources.l0c_bytes}
    return ", ".join(
        f"{name.upper()} is estimated to overflow: it needs {needed[name]:,} of {available:,} B"
        for name, available in arch.capacities.items()
        if (needed[name] or 0) > available
    )


def _needed(tiling: NpuTiling) -> Mapping[str, int]:
    return {
        "ub": math.ceil(tiling.ub_bytes),
        "l1": math.ceil(tiling.l1_bytes),
        "l0c": math.ceil(tiling.l0c_bytes),
    }


def _best(kernel: Kernel, trials: Iterable[Trial], default: Config | None) -> Raced:
    parameters = kernel.space.parameters

    def rank(trial: Trial) -> tuple[float, bool, list[int]]:
        places = [each.values.index(trial.config[each.name]) for each in parameters]
        return time_us(trial), trial.config != default, places

    ranked = sorted(trials, key=rank)
    return Raced(ranked, ranked[0] if ranked else None)
