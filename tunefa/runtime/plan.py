"""The plans of the forward pass: a plan runs calls with one kernel and config, or in PyTorch where
no kernel serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tunefa.compile.serving import Installed
from tunefa.runtime import in_pytorch, planning
from tunefa.runtime.call import Call, Options, Tensors, has_no_numbers, heads_first, no_descales
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_plan import CachePlan, Decode
from tunefa.runtime.job import CheckedCall, Job, P
from tunefa.runtime.kernel_plan import KernelPlan, Launches, all_heads_first, with_contiguous_rows
from tunefa.runtime.library_plan import LibraryPlan
from tunefa.runtime.lock_file import LockFile
from tunefa.runtime.planning import Compile
from tunefa.runtime.prefill_plan import Prefill, PrefillPlan
from tunefa.spec.kernel import Kernel
from tunefa.spec.workload import Workload
from tunefa.store.results import Store


class Plan(Protocol):
    """Runs all calls of one key, see `tunefa.runtime.plan_key.plan_key`."""

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs, and why."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that it holds."""

    def run(self, tensors: Tensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` in the call's layout."""

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """Runs a call; returns `out` alone."""


@dataclass(frozen=True)
class PyTorchPlan:
    """Computes calls in PyTorch, see `tunefa.runtime.in_pytorch`."""

    chosen: Chosen
    options: Options
    device_bytes: int = 0

    def run(self, tensors: Tensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` contiguous in the call's layout."""
        call = Call.of(tensors, self.options, scale)
        if has_no_numbers(call.q):
            return call.new_out(), call.new_lse()
        out, lse = in_pytorch.attention(call)
        return heads_first(out, self.options.layout).contiguous(), lse

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """Runs a call; returns `out` alone, contiguous in the call's layout."""
        call = Call.of(tensors, self.options, scale)
        if has_no_numbers(call.q):
            return call.new_out()
        return heads_first(in_pytorch.output(call), self.options.layout).contiguous()


@dataclass(frozen=True)
class Forward:
    """The forward pass of a call, as the job that a plan is made for."""

    call: Call
    op = "fwd"
    what = "attention runs"

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """q, k and v, with heads first."""
        return {"q": self.call.q, "k": self.call.k, "v": self.call.v}

    def workload(self) -> Workload:
        """The workload of the call."""
        return self.call.workload()

    def asked(self) -> Workload:
        """The workload of the call."""
        return self.call.workload()

    def tensors(self) -> tuple[Tensor, ...]:
        """The call's tensors with new out and lse, with heads first, as launches are prepared."""
        call, layout = self.call, self.call.options.layout
        q, k, v = (heads_first(tensor, layout) for tensor in (call.q, call.k, call.v))
        q, k, v = with_contiguous_rows(q, k, v)  # as the plan does for each call
        more = call.descales if call.cu_seqlens is None else call.cu_seqlens
        return all_heads_first((q, k, v, call.new_out(), call.new_lse(), *more), layout)

    def why_not(self, kernel: Kernel) -> None:
        """Kernels take every call whose workload they serve."""

    def plan(self, chosen: Chosen, launches: Launches) -> Plan:
        """The plan that starts these launches."""
        call, layout = self.call, self.call.options.layout
        if hasattr(launches.launch, "results"):
            return LibraryPlan(chosen, layout, launches)
        q, out = heads_first(call.q, layout), call.new_out()
        return KernelPlan(
            chosen,
            layout,
            launches,
            rows_contiguous=all(x.stride(-1) == 1 for x in (call.q, call.k, call.v)),
            out_like_q=(q.shape, q.stride(), q.dtype) == (out.shape, out.stride(), out.dtype),
            no_descales=no_descales(q),
        )

    def in_pytorch(self, chosen: Chosen) -> Plan:
        """The plan that runs the call in PyTorch."""
        return PyTorchPlan(chosen, self.call.options)


def best_plan(
    call: Call, chip: Chip, store: Store, kernels: Sequence[Kernel], compile: Compile
) -> Plan:
    """The plan for the forward pass of a call on a chip, see `planning.best_plan`."""
    return planning.best_plan(Forward(call), chip, store, kernels, compile)


def frozen_plan(
    call: Call, chip: Chip, lock: LockFile, installed: Installed, compile: Compile
) -> Plan:
    """The plan with exactly the config of a lock file's record, see `planning.frozen_plan`."""
    return planning.frozen_plan(Forward(call), chip, lock, installed, compile)


def plan_without_kernel(call: Call, lock: LockFile | None) -> Plan:
    """The plan for a call that is not on CUDA, or has a scale that kernels do not take.

    Raises TunefaError for a call on CUDA in a process that is frozen to `lock`.
    """
    return _without_kernel(Forward(call), lock)


def cache_plan_without_kernel(job: Decode, lock: LockFile | None) -> CachePlan:
    """The same for attention over a cache."""
    return _without_kernel(job, lock)


def prefill_plan_without_kernel(job: Prefill, lock: LockFile | None) -> PrefillPlan:
    """The same for attention of packed queries over a cache with pages."""
    return _without_kernel(job, lock)


def _without_kernel(job: Job[P], lock: LockFile | None) -> P:
    call = job.call
    why = why_no_kernel(call)
    if lock is not None and call.q.is_cuda:
        raise lock.serves_no(
            f"call with q {tuple(call.q.shape)} on {Chip.of(call.q.device).name}", why
        )
    return planning.pytorch_plan(job, why)


def why_no_kernel(call: CheckedCall) -> str:
    """The reason that no kernel serves a call: it is not on CUDA, or kernels refuse its scale."""
    if why := Chip.of(call.q.device).why_not:
        return why
    if call.scale > 0:
        return f"scale {call.scale} is below 2^-100, and kernels divide by it"
    return f"scale {call.scale} is not positive, and kernels multiply a row's maximum by it"
