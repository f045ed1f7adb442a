"""The runtime of a process: the first call of a shape makes a plan, and later calls run it.

To make a plan, the arguments are checked, a config is looked up in the YAML files and compiled. The
plan is kept under a key of everything that it depends on, so that a later call is one dictionary
lookup and a launch. Calls that differ in batch and lengths only share what does not depend on these
(see `tunefa.runtime.family_plans`).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.measure.gradients import Gradients, Three
from tunefa.runtime import backward, planning
from tunefa.runtime import plan as plans
from tunefa.runtime.argument_checks import is_usual
from tunefa.runtime.backward import Backward, BackwardPlan
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.cache_plans import CachePlans
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_call import CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import CachePlan
from tunefa.runtime.family_call import FamilyCall, family_call
from tunefa.runtime.family_plans import FamilyPlans
from tunefa.runtime.gradient_plans import GradientPlans
from tunefa.runtime.growth import NextPlans
from tunefa.runtime.plan import Plan
from tunefa.runtime.plan_key import plan_key
from tunefa.runtime.planner import Planner
from tunefa.runtime.prefill_call import PrefillTensors
from tunefa.runtime.prefill_plan import PrefillPlan
from tunefa.store.record import Record

MAX_PLANS = 4096
"""The most plans that are kept. A server that decodes needs one for each length. A plan counts once
more for every 16 KiB that it holds on the device (`KernelPlan.device_bytes`), so that all plans
together hold at most 64 MiB there."""

MAX_FAMILIES = 16
"""The most families of calls that are kept, with some megabytes each."""


class _Met:
    """A family with one call so far."""


class Runtime:
    """The plans, compiled configs and records of one process. Threads may share it."""

    def __init__(self) -> None:
        self.planner = Planner()
        self._lock = self.planner.lock
        self._plans = BoundedCache[Plan](MAX_PLANS, lambda plan: 1 + plan.device_bytes // 2**14)
        self._gradients = GradientPlans(self.planner, MAX_PLANS)
        self._backward_plans = self._gradients.plans
        self._next = NextPlans(self._plans, self._next_plan, self._lock)
        self.caches = CachePlans(self.planner, MAX_PLANS)
        self._families: BoundedCache[FamilyPlans | TunefaError | _Met] = BoundedCache(MAX_FAMILIES)
        self._last = threading.local()
        self._last_backward: BackwardPlan | None = None

    @property
    def last(self) -> Chosen | None:
        """The choice that ran this thread's last call; None before the first call."""
        plan = getattr(self._last, "plan", None)
        return None if plan is None else _copied(plan.chosen)

    @property
    def last_backward(self) -> Chosen | None:
        """The choice that computed the last gradients in any thread: autograd has its own."""
        plan = self._last_backward
        return None if plan is None else _copied(plan.chosen)

    def ready(
        self, tensors: Tensors, options: Options, scale: float | None
    ) -> tuple[Plan, float | None]:
        """The plan for a call with these arguments, and the scale to run it with."""
        on_cuda = tensors.q.is_cuda
        if on_cuda and (scale is None or is_usual(scale)):
            plan = self.plan(tensors, options)
        else:
            call = Call.of(tensors, options, scale)
            scale = call.scale
            if on_cuda and is_usual(scale):
                plan = self.plan(tensors, options)
            else:  # kernels serve no such call, of any shape
                plan = plans.plan_without_kernel(call, self.planner.freeze.file)
        self._last.plan = plan
        return plan, scale

    def taken(self, plan: Plan | CachePlan | PrefillPlan) -> None:
        """Remembers that a plan runs this thread's last call."""
        self._last.plan = plan

    def taken_backward(self, plan: BackwardPlan) -> None:
        """Remembers that a plan computes the last gradients."""
        self._last_backward = plan

    def gradients(
        self, tensors: Tensors, options: Options, scale: float | None, given: Gradients
    ) -> Three:
        """Returns (dq, dk, dv) of a call, with the dtypes and strides of `torch.empty_like` of q, k
        and v. `given` is in the call's layout."""
        if torch._C._get_deterministic_algorithms():
            options = options._replace(deterministic=True)
        given = backward.as_kernels_take_it(given)
        if tensors.q.is_cuda and (scale is None or is_usual(scale)):
            plan = self.backward_plan(tensors, options, given)
        else:
            call = Call.of(tensors, options, scale)
            scale = call.scale
            if tensors.q.is_cuda and is_usual(scale):
                plan = self.backward_plan(tensors, options, given)
            else:  # kernels serve no such call, of any shape
                why = plans.why_no_kernel(call)
                plan = planning.pytorch_plan(Backward(call, given), why)
        self.taken_backward(plan)
        return plan.gradients(tensors, given, scale)

    def decode(
        self,
        tensors: CacheTensors,
        options: CacheOptions,
        scale: float | None,
        out: Tensor | None,
        return_lse: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns (out, lse) of attention over a cache, with `out` in the call's layout; None for
        an lse that is not asked for."""
        plan, scale = self.caches.decode(tensors, options, scale, out)
        self.taken(plan)
        if return_lse:
            return plan.run(tensors, scale, out)
        return plan.output(tensors, scale, out), None

    def prefill(
        self, tensors: PrefillTensors, options: Options, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns (out, lse) of attention of packed queries over a cache with pages."""
        plan, scale = self.caches.prefill(tensors, options, scale, out)
        self.taken(plan)
        return plan.run(tensors, scale, out)

    def backward_plan(self, tensors: Tensors, options: Options, given: Gradients) -> BackwardPlan:
        """The plan for the gradients of calls of this key with a usual scale; it is made if
        there is none yet. `given` is as `backward.as_kernels_take_it` returns it."""
        return self._gradients.plan(tensors, options, given)

    def plan(self, tensors: Tensors, options: Options) -> Plan:
        """The plan for calls of this key with a usual scale; it is made if there is none yet.

        Raises TunefaError for the first argument that does not fit.
        """
        try:
            key = plan_key(tensors, options)
            plan = self._plans.get(key)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            # Sparse and nested tensors have no strides, for example, and a list has no hash.
            Call.of(tensors, options, None)
            raise
        return plan or self._add(key, tensors, options)

    def load(self, path: Path, frozen: bool = False) -> None:
        """Adds the records of a file, or freezes to it. Plans are made again afterwards."""
        with self._lock:
            self.planner.load(path, frozen)
            self._forget_plans()

    def use_only(self, records: list[Record]) -> None:
        """From now on looks in these records alone, and reads none from disk."""
        with self._lock:
            self.planner.use_only(records)
            self._forget_plans()

    def _add(self, key: Hashable, tensors: Tensors, options: Options) -> Plan:
        with self._lock:
            plan = self._plans.get(key)  # made by a thread that held the lock before
            if plan is None:
                call = None if self.planner.freeze.file else family_call(key, options)
                plan = self._made(tensors, options, call)
                self._plans.add(key, plan)
                self._next.watch(key, options, plan)
            return plan

    def _next_plan(self, key: Hashable, options: Options) -> Plan | None:
        """The plan for a call that may come next, if its family is known."""
        call = None if self.planner.freeze.file else family_call(key, options)
        family = None if call is None else self._families.get(call.family)
        if call is None:
            return None
        if isinstance(family, FamilyPlans) and not family.has_few(call):
            return family.next_plan(call)
        return self.planner.known_few(call, options)

    def _made(self, tensors: Tensors, options: Options, call: FamilyCall | None) -> Plan:
        """A new plan of the forward pass; `call` is None where it has no family."""
        found: Plan | None
        if call is None:
            found = self.planner.few_queries(tensors, options)
        else:
            family = self._families.get(call.family)
            if isinstance(family, FamilyPlans) and not family.has_few(call):
                found = family.plan(tensors, call)
            else:
                found = self.planner.known_few(call, options)
                found = found or self.planner.few_queries(tensors, options, call)
                found = found or self._of_family(tensors, options, call)
        return found or self.planner.plan(plans.Forward(Call.of(tensors, options.shared(), None)))

    def _of_family(self, tensors: Tensors, options: Options, call: FamilyCall) -> Plan | None:
        """The plan of a call whose family is known; None for others, and where the family makes
        none. The second call of a family makes it known."""
        family = self._families.get(call.family)
        if family is None:
            self._families.add(call.family, _Met())
            return None
        if isinstance(family, _Met):
            family = self.planner.family(plans.Forward(Call.of(tensors, options, None)))
            self._families.add(call.family, family)
        return None if isinstance(family, TunefaError) else family.plan(tensors, call)

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._gradients.clear()
        self.caches.clear()
        self._families.clear()

    def leave_out_libraries(self) -> None:
        """From now on runs no kernel that calls a library. So a comparison with libraries is one of
        tunefa's own kernels."""
        with self._lock:
            self.planner.leave_out_libraries()
            self._forget_plans()


_RUNTIME = Runtime()


def run_by(runtime: Runtime) -> Runtime:
    """Lets a runtime, or what has its methods, run this process's calls; returns the one before."""
    global _RUNTIME
    before, _RUNTIME = _RUNTIME, runtime
    return before


def current() -> Runtime:
    """The runtime of this process."""
    return _RUNTIME


def last_choice(*, backward: bool = False) -> Chosen | None:
    """Returns what ran this thread's last call of `flash_attention`, `flash_attention_varlen` or
    `decode_attention`, and why; with `backward`, what computed the last gradients, in any thread.

    It is None before the first call. The replay of a CUDA graph is not a call.
    """
    return _RUNTIME.last_backward if backward else _RUNTIME.last


def _copied(chosen: Chosen | None) -> Chosen | None:
    """A copy, because the plan goes on using its config."""
    return chosen and replace(chosen, config=dict(chosen.config))


def load(path: str | PathLike[str], *, frozen: bool = False) -> None:
    """Loads the records of a YAML file, which `tunefa search --out` or `tunefa export` wrote, or a
    bundle (`tunefa bundle`).

    In this process they come before those of the user's store and those that tunefa ships; the file
    that was loaded last comes first, and bundles before all records. With `frozen`, calls on CUDA
    use exactly the records or plans of this file or raise TunefaError, as with the environment
    variable TUNEFA_FROZEN.

    Raises TunefaError, with file and line, for a file that cannot be read, and for a bundle that
    this tunefa or this machine's driver cannot run.
    """
    _RUNTIME.load(Path(path), frozen)
