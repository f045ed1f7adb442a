"""The gain that the cost model promises of an item before any of its configs ran."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from concurrent.futures import Future

from tunefa.compile.workers import Workers
from tunefa.costmodel.estimate import estimates, expected_us
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.sweep.item_state import Standing
from tunefa.sweep.requests import PROMISE
from tunefa.sweep.study import SweepStudy

_LIMIT_S = 60.0
LOOKED_AT = 500
"""Configs of each kernel of which the model says the time, in 0.1 s; all may take 2 s."""


class Promises:
    """Asks for the promise of each item, the heaviest first, in a process of its own, and notes
    them in the study. A context manager."""

    def __init__(self) -> None:
        self._workers = Workers(1)
        self._asked: dict[str, Future[float | None]] = {}

    def __enter__(self) -> Promises:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.stop()

    def ask(self, study: SweepStudy, found: Sequence[Standing]) -> None:
        """Asks for those of new items, and notes those that are known meanwhile."""
        plan, notes = study.plan, study.notes
        for each in found:
            if each.key not in self._asked and PROMISE + each.key not in notes:
                arch, device, workload = each.key.split("/", 2)
                task = (plan.kernels, workload, arch, device)
                self._asked[each.key] = self._workers.submit(promised, task, _LIMIT_S)
        for key, asked in self._asked.items():
            if asked.done() and PROMISE + key not in notes:
                study.note(PROMISE + key, asked.result() if asked.exception() is None else None)


def promised(names: Sequence[str], workload: str, arch: str, device: str) -> float | None:
    """Returns the gain that the model promises of the best config of these kernels, all if there
    are none, relative to the fastest default; None where it knows no time.

    All are names, so that another process can call it.
    """
    made = Target.named(arch)
    try:
        target = Target(made.arch, made.arch.device(device))
    except TunefaError:  # a product without an entry of its own
        target = made
    asked = Workload.parse(workload)
    own = [name for name in names if kernels.load(name).op == asked.op]
    cases = [Case(kernel, asked, target) for kernel in kernels.serving(asked, target.arch, own)]
    defaults = [us for case in cases if (us := _default_us(case)) is not None]
    least = [us for case in cases if (us := _least_us(case)) is not None]
    if not defaults or not least:
        return None
    return gain(min(defaults), least)


def gain(default_us: float, expected: Sequence[float]) -> float:
    """Returns how much less the least of the expected times is than the default's, relatively."""
    known = [us for us in expected if 0.0 < us < math.inf]
    return max(0.0, 1.0 - min(known, default=default_us) / default_us)


def _default_us(case: Case) -> float | None:
    try:
        time_us = expected_us(case, case.default())
    except TunefaError:
        return None
    return time_us if 0.0 < time_us < math.inf else None


def _least_us(case: Case) -> float | None:
    configs: Sequence[Config] = case.feasible().configs
    looked_at = random.Random(0).sample(configs, min(LOOKED_AT, len(configs)))
    times = [each.time_us for each in estimates(case, looked_at) if 0.0 < each.time_us < math.inf]
    return min(times, default=None)
