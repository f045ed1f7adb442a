"""The plans of calls over a cache, of few queries and of packed ones, of one process."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from torch import Tensor

from tunefa.runtime import cache_sizes, decode_call, prefill_call
from tunefa.runtime import plan as plans
from tunefa.runtime.argument_checks import is_usual
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.cache_family import CacheFamily
from tunefa.runtime.call import Options
from tunefa.runtime.decode_call import CacheCall, CacheKey, CacheOptions, CacheTensors, check_out
from tunefa.runtime.decode_plan import CachePlan, Decode
from tunefa.runtime.growth import NextPlans
from tunefa.runtime.planner import Planner
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors
from tunefa.runtime.prefill_plan import Prefill, PrefillPlan

MAX_FAMILIES = 64
"""The most families of calls that are kept, with some kilobytes each."""


class CachePlans:
    """Threads may share it."""

    def __init__(self, planner: Planner, most: int) -> None:
        """Keeps at most so many plans of each kind."""
        self._planner = planner
        self.plans = BoundedCache[CachePlan](most, lambda plan: 1)
        self.prefill_plans = BoundedCache[PrefillPlan](most, lambda plan: 1)
        self._families: BoundedCache[CacheFamily] = BoundedCache(MAX_FAMILIES)
        self._next = NextPlans(self.plans, self._next_plan, planner.lock)

    def decode(
        self, tensors: CacheTensors, options: CacheOptions, scale: float | None, out: Tensor | None
    ) -> tuple[CachePlan, float | None]:
        """The plan for a call of few queries, and the scale to run it with.

        Raises TunefaError for the first argument that does not fit.
        """
        if (scale is None or is_usual(scale)) and getattr(tensors.q, "is_cuda", False):
            return self.plan(tensors, options, out), scale
        call = CacheCall.of(tensors, options, scale)
        check_out(call, out)
        scale = None if scale is None else call.scale
        if call.q.is_cuda and is_usual(call.scale):
            return self.plan(tensors, options, out), scale
        # Kernels serve no such call.
        job = Decode(call, out)
        return plans.cache_plan_without_kernel(job, self._planner.freeze.file), scale

    def plan(self, tensors: CacheTensors, options: CacheOptions, out: Tensor | None) -> CachePlan:
        """The plan for calls of few queries of this key with a usual scale; it is made if there
        is none yet. Raises TunefaError for the first argument that does not fit."""
        try:
            key = decode_call.key(tensors, options, out)
            plan = self.plans.get(key)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            check_out(CacheCall.of(tensors, options, None), out)
            raise
        return plan or self._new(key, tensors, options, out)

    def _new(
        self, key: CacheKey, tensors: CacheTensors, options: CacheOptions, out: Tensor | None
    ) -> CachePlan:
        """A new plan: that of the call's family, or one that is planned for this call."""
        with self._planner.lock:
            plan = self.plans.get(key)  # made by a thread that held the lock before
            if plan is not None:
                return plan
            is_frozen = self._planner.freeze.file is not None
            call = None if is_frozen else cache_sizes.family_call(key, options)
            family = None if call is None else self._families.get(call.family)
            if family is not None and call is not None:
                plan = family.plan(call.sizes)
            if plan is None:
                asked = CacheCall.of(tensors, options, None)
                check_out(asked, out)
                plan = self._planner.plan(Decode(asked, out))
                if call is not None and family is None:
                    count = 5 + len(asked.more)
                    made = self._planner.cache_family(plan, asked.q.device, call.sizes, count)
                    if made is not None:
                        self._families.add(call.family, made)
            self.plans.add(key, plan)
            self._next.watch(key, options, plan)
            return plan

    def _next_plan(self, key: CacheKey, options: CacheOptions) -> CachePlan | None:
        """The plan for a call that may come next, if its family is known."""
        call = cache_sizes.family_call(key, options)
        family = None if call is None else self._families.get(call.family)
        return None if family is None or call is None else family.plan(call.sizes)

    def prefill(
        self, tensors: PrefillTensors, options: Options, scale: float | None, out: Tensor | None
    ) -> tuple[PrefillPlan, float | None]:
        """The plan for a call of packed queries over a cache with pages, and the scale to run it
        with. Raises TunefaError for the first argument that does not fit."""
        try:
            on_cuda = tensors.q.is_cuda
            key = prefill_call.key(tensors, options, out) if on_cuda else None
            plan = self.prefill_plans.get(key) if on_cuda else None
        except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError):
            prefill_call.check_out(PrefillCall.of(tensors, options, None), out)
            raise
        if plan is not None and is_usual(scale):
            return plan, scale
        call = PrefillCall.of(tensors, options, scale)
        prefill_call.check_out(call, out)
        scale = None if scale is None else call.scale
        job = Prefill(call, out)
        if not on_cuda or not is_usual(call.scale):  # kernels serve no such call
            return plans.prefill_plan_without_kernel(job, self._planner.freeze.file), scale
        return plan or self._prefill(key, job), scale

    def _prefill(self, key: Hashable, job: Prefill) -> PrefillPlan:
        with self._planner.lock:
            plan = self.prefill_plans.get(key)  # made by a thread that held the lock before
            if plan is None:
                call = replace(job.call, options=job.call.options.shared())
                plan = self._planner.plan(replace(job, call=call))
                self.prefill_plans.add(key, plan)
            return plan

    def clear(self) -> None:
        """Drops all plans and families."""
        self.plans.clear()
        self.prefill_plans.clear()
        self._families.clear()
