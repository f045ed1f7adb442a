"""tunefa's own calls, as a trace sees them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.integrations.tracer import Tracer
from tunefa.measure.gradients import Gradients, Three
from tunefa.runtime import process
from tunefa.runtime.backward import BackwardPlan
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors
from tunefa.runtime.plan import Plan
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors
from tunefa.runtime.process import Runtime
from tunefa.spec.workload import Workload


@contextlib.contextmanager
def observed(tracer: Tracer) -> Iterator[None]:
    """Shows a tracer all calls of tunefa inside of the `with`."""
    seen: Any = _Observed(process.current(), tracer)
    before = process.run_by(seen)
    try:
        yield
    finally:
        process.run_by(before)


def of_attention(tensors: Tensors, options: Options, op: str = "fwd") -> Workload | str:
    """Returns the workload of a call, or what it is instead."""
    try:
        workload = Call.of(tensors, options, None).workload()
        is_bwd = op == "bwd"
        return replace(workload, op=op, deterministic=options.deterministic and is_bwd)
    except TunefaError as error:
        return f"attention that is no workload: {error}"


class _Observed:
    """A runtime whose calls a tracer sees."""

    def __init__(self, runtime: Runtime, tracer: Tracer) -> None:
        self._runtime, self._tracer = runtime, tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def plan(self, tensors: Tensors, options: Options) -> _ObservedPlan:
        """See `Runtime.plan`."""
        return _ObservedPlan(self._runtime.plan(tensors, options), options, self._tracer)

    def backward_plan(
        self, tensors: Tensors, options: Options, given: Gradients
    ) -> _ObservedBackwardPlan:
        """See `Runtime.backward_plan`."""
        plan = self._runtime.backward_plan(tensors, options, given)
        return _ObservedBackwardPlan(plan, options, self._tracer)

    def ready(
        self, tensors: Tensors, options: Options, scale: float | None
    ) -> tuple[_ObservedPlan, float | None]:
        """See `Runtime.ready`."""
        plan, scale = self._runtime.ready(tensors, options, scale)
        return _ObservedPlan(plan, options, self._tracer), scale

    def gradients(
        self, tensors: Tensors, options: Options, scale: float | None, given: Gradients
    ) -> Three:
        """See `Runtime.gradients`."""
        return self._tracer.call(
            lambda: of_attention(tensors, options, "bwd"),
            tensors.q.device,
            lambda: self._runtime.gradients(tensors, options, scale, given),
        )

    def decode(
        self,
        tensors: CacheTensors,
        options: CacheOptions,
        scale: float | None,
        out: Tensor | None,
        return_lse: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """See `Runtime.decode`."""
        return self._tracer.call(
            lambda: _of_cache(tensors, options),
            tensors.q.device,
            lambda: self._runtime.decode(tensors, options, scale, out, return_lse),
        )

    def prefill(
        self, tensors: PrefillTensors, options: Options, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See `Runtime.prefill`."""
        return self._tracer.call(
            lambda: _of_prompts(tensors, options),
            tensors.q.device,
            lambda: self._runtime.prefill(tensors, options, scale, out),
        )


@dataclass(frozen=True)
class _ObservedPlan:
    """A plan whose calls a tracer sees."""

    plan: Plan
    options: Options
    tracer: Tracer

    @property
    def chosen(self) -> Chosen:
        """See `Plan.chosen`."""
        return self.plan.chosen

    def run(self, tensors: Tensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """See `Plan.run`."""
        what = lambda: of_attention(tensors, self.options)  # noqa: E731
        return self.tracer.call(what, tensors.q.device, lambda: self.plan.run(tensors, scale))

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """See `Plan.output`."""
        what = lambda: of_attention(tensors, self.options)  # noqa: E731
        return self.tracer.call(what, tensors.q.device, lambda: self.plan.output(tensors, scale))


@dataclass(frozen=True)
class _ObservedBackwardPlan:
    """A plan for gradients whose calls a tracer sees."""

    plan: BackwardPlan
    options: Options
    tracer: Tracer

    @property
    def chosen(self) -> Chosen:
        """See `BackwardPlan.chosen`."""
        return self.plan.chosen

    def gradients(self, tensors: Tensors, given: Gradients, scale: float | None) -> Three:
        """See `BackwardPlan.gradients`."""
        return self.tracer.call(
            lambda: of_attention(tensors, self.options, "bwd"),
            tensors.q.device,
            lambda: self.plan.gradients(tensors, given, scale),
        )


def _of_cache(tensors: CacheTensors, options: CacheOptions) -> Workload | str:
    try:
        return CacheCall.of(tensors, options, None).workload()
    except TunefaError as error:
        return f"attention over a cache that is no workload: {error}"


def _of_prompts(tensors: PrefillTensors, options: Options) -> Workload | str:
    try:
        return PrefillCall.of(tensors, options, None).workload()
    except TunefaError as error:
        return f"attention of prompts over a cache that is no workload: {error}"
