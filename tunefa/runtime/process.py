"""The runtime of a process: the first call of a shape makes a plan, and later calls run it.

To make a plan, the arguments are checked, a config is looked up in the YAML files and compiled. The
plan is kept under a key of everything that it depends on, so that a later call is one dictionary
lookup and a launch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from tunefa.compile.serving import Installed, UsableStore
from tunefa.measure.gradients import Gradients, Three
from tunefa.runtime import backward, decode_call, planning
from tunefa.runtime import plan as plans
from tunefa.runtime.backward import Backward, BackwardPlan
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Call, Options, Tensors, plan_key
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors, check_out
from tunefa.runtime.decode_plan import CachePlan, Decode
from tunefa.runtime.lock_file import FreezeState
from tunefa.runtime.plan import Plan
from tunefa.runtime.planning import Job, P
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.store import results as store
from tunefa.store.record import Record
from tunefa.store.results import Store

MAX_PLANS = 4096
"""How many plans are kept. A server that decodes needs one for each length. A plan counts once more
for every 16 KiB that it holds on the device (`KernelPlan.device_bytes`), so that all plans together
hold at most 64 MiB there."""


class _Records(Store):
    """The records that were loaded into this process, followed by those on disk."""

    def __init__(self, roots: Sequence[Path]) -> None:
        super().__init__(roots)
        self.loaded: list[Record] = []

    def records(self) -> list[Record]:
        return [*self.loaded, *super().records()]


class Runtime:
    """The plans, compiled configs and records of one process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plans = BoundedCache[Plan](MAX_PLANS, lambda plan: 1 + plan.device_bytes // 2**14)
        self._backward_plans = BoundedCache[BackwardPlan](
            MAX_PLANS, lambda plan: 1 + plan.device_bytes // 2**14
        )
        self._cache_plans = BoundedCache[CachePlan](MAX_PLANS, lambda plan: 1)
        self._devices: dict[torch.device, tuple[Chip, Compiler]] = {}
        self._records: _Records | None = None
        self._kernels: tuple[Kernel, ...] | None = None
        self._installed: Installed | None = None
        self._freeze = FreezeState()
        self._takes_libraries = True
        self._last = threading.local()
        self._last_backward: Chosen | None = None

    @property
    def last(self) -> Chosen | None:
        """The choice that ran this thread's last call; None before the first call."""
        return _copied(getattr(self._last, "chosen", None))

    @property
    def last_backward(self) -> Chosen | None:
        """The choice that computed the last gradients in any thread: autograd has its own."""
        return _copied(self._last_backward)

    def ready(
        self, tensors: Tensors, options: Options, scale: float | None
    ) -> tuple[Plan, float | None]:
        """The plan for a call with these arguments, and the scale to run it with."""
        on_cuda = tensors.q.is_cuda
        if on_cuda and is_usual(scale):
            plan = self.plan(tensors, options)
        else:
            call = Call.of(tensors, options, scale)
            scale = call.scale
            if on_cuda and scale > 0:
                plan = self.plan(tensors, options)
            else:  # kernels serve no such call, of any shape
                plan = plans.plan_without_kernel(call, self._freeze.file)
        self._last.chosen = plan.chosen
        return plan, scale

    def gradients(
        self, tensors: Tensors, options: Options, scale: float | None, given: Gradients
    ) -> Three:
        """Returns (dq, dk, dv) of a call, with the dtypes and strides of `torch.empty_like` of q, k
        and v. `given` is in the call's layout."""
        if torch.are_deterministic_algorithms_enabled():
            options = options._replace(deterministic=True)
        given = backward.as_kernels_take_it(given)
        if tensors.q.is_cuda and is_usual(scale):
            plan = self.backward_plan(tensors, options, given)
        else:
            call = Call.of(tensors, options, scale)
            scale = call.scale
            if tensors.q.is_cuda and scale > 0:
                plan = self.backward_plan(tensors, options, given)
            else:  # kernels serve no such call, of any shape
                why = plans.why_no_kernel(call)
                plan = planning.pytorch_plan(Backward(call, given), why)
        self._last_backward = plan.chosen
        return plan.gradients(tensors, given, scale)

    def decode(
        self, tensors: CacheTensors, options: CacheOptions, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns (out, lse) of attention over a cache, with `out` in the call's layout."""
        try:
            key = decode_call.key(tensors, options, out)
            plan = self._cache_plans.get(key)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            CacheCall.of(tensors, options, None)
            raise
        if plan is None:
            call = CacheCall.of(tensors, options, None)
            check_out(call, out)
            with self._lock:
                plan = self._cache_plans.get(key)  # made by a thread that held the lock before
                if plan is None:
                    plan = self._made(Decode(call, out))
                    self._cache_plans.add(key, plan)
        if not is_usual(scale):
            call = CacheCall.of(tensors, options, scale)
            scale = call.scale
            if scale <= 0:  # kernels serve no such call
                why = f"scale {scale} is not positive"
                plan = planning.pytorch_plan(Decode(call, out), why)
        self._last.chosen = plan.chosen
        return plan.run(tensors, scale, out)

    def backward_plan(self, tensors: Tensors, options: Options, given: Gradients) -> BackwardPlan:
        """The plan for the gradients of calls of this key with a positive scale; it is made if
        there is none yet. `given` is as `backward.as_kernels_take_it` returns it."""
        key = backward.key(tensors, options, given)
        plan = self._backward_plans.get(key)
        if plan is None:
            call = Call.of(tensors, options, None)
            with self._lock:
                plan = self._backward_plans.get(key)  # made by a thread that held the lock before
                if plan is None:
                    plan = self._made(Backward(call, given))
                    self._backward_plans.add(key, plan)
        return plan

    def plan(self, tensors: Tensors, options: Options) -> Plan:
        """The plan for calls of this key with a positive scale; it is made if there is none yet.

        Raises TunefaError for the first argument that does not fit.
        """
        try:
            key = plan_key(tensors, options)
            plan = self._plans.get(key)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            # Sparse and nested tensors have no strides, for example, and a list has no hash.
            Call.of(tensors, options, None)
            raise
        return plan or self._add(key, Call.of(tensors, options, None))

    def load(self, path: Path, frozen: bool = False) -> None:
        """Adds the records of a file, or freezes to it. Plans are made again afterwards."""
        with self._lock:
            if frozen:
                self._freeze.to(path)
            else:
                self._freeze.admit(path)
                stored = self._stored()
                stored.loaded = [*store.read(path), *stored.loaded]
            self._plans.clear()
            self._backward_plans.clear()
            self._cache_plans.clear()

    def _add(self, key: Hashable, call: Call) -> Plan:
        with self._lock:
            plan = self._plans.get(key)  # made by a thread that held the lock before
            if plan is None:
                plan = self._made(plans.Forward(call))
                self._plans.add(key, plan)
            return plan

    def _made(self, job: Job[P]) -> P:
        """The new plan of a job."""
        if self._kernels is None:
            self._kernels = tuple(kernels.usable())
        device = job.call.q.device
        if device not in self._devices:
            self._devices[device] = (Chip.of(device), Compiler())
        chip, compiler = self._devices[device]
        lock = self._freeze.file
        self._installed = self._installed or Installed(self._kernels)
        if lock is None:
            known = UsableStore(self._stored(), self._installed)
            serving = [k for k in self._kernels if k.op == job.op and self._may_run(k)]
            return planning.best_plan(job, chip, known, serving, compiler)
        if job.op == "bwd" and all(record.workload.op != "bwd" for record in lock.records):
            return planning.pytorch_plan(job, f"{lock.path} has no record of gradients")
        return planning.frozen_plan(job, chip, lock, self._installed, compiler)

    def _may_run(self, kernel: Kernel) -> bool:
        return self._takes_libraries or not kernel.is_library

    def leave_out_libraries(self) -> None:
        """From now on runs no kernel that calls a library. So a comparison with libraries is one of
        tunefa's own kernels."""
        with self._lock:
            self._takes_libraries = False
            self._plans.clear()
            self._backward_plans.clear()
            self._cache_plans.clear()

    def _stored(self) -> _Records:
        if self._records is None:
            self._records = _Records(store.default_store().roots)
        return self._records


_RUNTIME = Runtime()


def current() -> Runtime:
    """The runtime of this process."""
    return _RUNTIME


def last_choice(*, backward: bool = False) -> Chosen | None:
    """Returns what ran this thread's last call of `flash_attention` or `flash_attention_varlen`,
    and why; with `backward`, what computed the last gradients, in any thread.

    It is None before the first call. The replay of a CUDA graph is not a call.
    """
    return _RUNTIME.last_backward if backward else _RUNTIME.last


def _copied(chosen: Chosen | None) -> Chosen | None:
    """A copy, because the plan goes on using its config."""
    return chosen and replace(chosen, config=dict(chosen.config))


def load(path: str | PathLike[str], *, frozen: bool = False) -> None:
    """Loads the records of a YAML file, which `tunefa search --out` or `tunefa export` wrote.

    In this process they come before those of the user's store and those that tunefa ships; the file
    that was loaded last comes first. With `frozen`, calls on CUDA use exactly the records of this
    file or raise TunefaError, as with the environment variable TUNEFA_FROZEN.

    Raises TunefaError, with file and line, for a file that cannot be read.
    """
    _RUNTIME.load(Path(path), frozen)


def is_usual(scale: float | None) -> bool:
    """Whether kernels take the scale without a check."""
    return scale is None or (type(scale) is float and 0.0 < scale < math.inf)
