"""The plans of gradients of one process."""

from __future__ import annotations

from collections.abc import Hashable

from tunefa.measure.gradients import Gradients
from tunefa.runtime import backward
from tunefa.runtime.backward import Backward, BackwardPlan
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.gradient_family import GradientFamily, gradient_call
from tunefa.runtime.growth import NextPlans
from tunefa.runtime.planner import Planner

MAX_FAMILIES = 16
"""The most families of gradients that are kept, with some megabytes each."""


class GradientPlans:
    """Threads may share it."""

    def __init__(self, planner: Planner, most: int) -> None:
        """Keeps plans of at most such a weight, where a plan counts once, and once more for every
        16 KiB that it holds on the device."""
        self._planner = planner
        self.plans = BoundedCache[BackwardPlan](most, lambda plan: 1 + plan.device_bytes // 2**14)
        self._families: BoundedCache[tuple[GradientFamily | None]] = BoundedCache(MAX_FAMILIES)
        """By their keys; (None,) where there is none."""
        self._met: BoundedCache[bool] = BoundedCache(MAX_FAMILIES)
        """The keys of families with a call so far."""
        self._next = NextPlans(self.plans, self._next_plan, planner.lock)

    def plan(self, tensors: Tensors, options: Options, given: Gradients) -> BackwardPlan:
        """The plan for the gradients of calls of this key with a usual scale; it is made if
        there is none yet. `given` is as `backward.as_kernels_take_it` returns it."""
        key = backward.key(tensors, options, given)
        return self.plans.get(key) or self._new(key, tensors, options, given)

    def _new(
        self, key: Hashable, tensors: Tensors, options: Options, given: Gradients
    ) -> BackwardPlan:
        with self._planner.lock:
            plan = self.plans.get(key)  # made by a thread that held the lock before
            if plan is not None:
                return plan
            asked = gradient_call(key, options)
            family = None if asked is None else self._family(asked.family, tensors, options, given)
            if family is not None and asked is not None:
                plan = family.plan(asked)
            if plan is None:
                job = Backward(Call.of(tensors, options.shared(), None), given)
                plan = self._planner.plan(job)
                if family is not None and asked is not None:
                    family.learn(asked, plan)
            self.plans.add(key, plan)
            self._next.watch(key, options, plan)
            return plan

    def _next_plan(self, key: Hashable, options: Options) -> BackwardPlan | None:
        """The plan for gradients that may come next, if their family is known."""
        asked = gradient_call(key, options)
        family = None if asked is None else self._families.get(asked.family)
        if asked is None or family is None or family[0] is None:
            return None
        return family[0].plan(asked)

    def _family(
        self, key: Hashable, tensors: Tensors, options: Options, given: Gradients
    ) -> GradientFamily | None:
        """The family with this key; None where it has none. The second call makes it known."""
        found = self._families.get(key)
        if found is None:
            if self._met.get(key) is None:
                self._met.add(key, True)
                return None
            job = Backward(Call.of(tensors, options, None), given)
            self._families.add(key, found := (self._planner.gradient_family(job),))
        return found[0]

    def clear(self) -> None:
        """Drops all plans and families."""
        self.plans.clear()
        self._families.clear()
        self._met.clear()
