"""The gradients of a call: what decides their plan, and the plans that compute them."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tunefa.compile.contract import unread
from tunefa.compile.launch.prepared import apart
from tunefa.measure.gradients import Gradients, Three
from tunefa.runtime import in_pytorch
from tunefa.runtime.call import Call, Options, Tensors, has_no_numbers, heads_first, power_of_2
from tunefa.runtime.choice import Chosen
from tunefa.runtime.kernel_plan import Launches, with_contiguous_rows
from tunefa.runtime.library_plan import results
from tunefa.runtime.plan_key import plan_key
from tunefa.spec.kernel import Kernel
from tunefa.spec.workload import Workload

_DLSE = 6
"""The place of the gradient of the logsumexp among the tensors of a launch."""


class BackwardPlan(Protocol):
    """Computes the gradients of all calls of one key, see `key`."""

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs, and why."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that it holds."""

    def gradients(self, tensors: Tensors, given: Gradients, scale: float | None) -> Three:
        """Returns (dq, dk, dv), with the dtypes and strides of `torch.empty_like` of q, k and v.

        `given` is as `as_kernels_take_it` returns it, in the call's layout.
        """


def as_kernels_take_it(given: Gradients) -> Gradients:
    """Returns the outputs and their gradients, copied where a kernel could not read them: rows are
    contiguous, no element is read twice, and the logsumexp is contiguous."""
    out, lse, grad_out, _ = given
    if out.is_contiguous() and grad_out.is_contiguous() and lse.is_contiguous():
        return given
    return Gradients(_dense(out), lse.contiguous(), _dense(grad_out), given.grad_lse)


def _dense(x: Tensor) -> Tensor:
    steps = x.stride()
    expanded = 0 in steps and any(
        step == 0 and size > 1 for size, step in zip(x.shape, steps, strict=True)
    )
    return x.contiguous() if expanded or x.stride(-1) != 1 else x


def key(tensors: Tensors, options: Options, given: Gradients) -> Hashable:
    """The key of gradients: those with equal keys are computed by one plan.

    It holds that of the forward pass, the strides of what kernels read beside its inputs, whether
    there is a gradient of the logsumexp, and of packed calls the number of keys, rounded up to a
    power of two: the memory of launches has room for so many.
    """
    out, _, grad_out, grad_lse = given
    return (
        "gradients",
        plan_key(tensors, options),
        out.stride(),
        grad_out.stride(),
        (out.data_ptr() | grad_out.data_ptr()) % 16 == 0,
        grad_lse if grad_lse is None else grad_lse.stride(),
        None if tensors.cu_seqlens is None else power_of_2(tensors.k.shape[0]),
    )


@dataclass(frozen=True)
class Backward:
    """The gradients of a call, as the job that a plan is made for."""

    call: Call
    given: Gradients
    """In the call's layout."""
    op = "bwd"
    what = "attention's gradients are computed"

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """q, k, v, out and its gradient, with heads first."""
        names, made = ("q", "k", "v", "out", "dout"), self.tensors()
        return {name: made[place] for name, place in zip(names, (0, 1, 2, 3, 5), strict=True)}

    def workload(self) -> Workload:
        """The workload of the gradients."""
        deterministic = self.call.options.deterministic
        return replace(self.call.workload(), op="bwd", deterministic=deterministic)

    def asked(self) -> Workload:
        """The workload of the gradients."""
        return self.workload()

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of a launch, with new gradients, with heads first."""
        return self._tensors

    @functools.cached_property  # they are as large as the call's
    def _tensors(self) -> tuple[Tensor, ...]:
        call, layout = self.call, self.call.options.layout
        inputs = with_contiguous_rows(*(heads_first(x, layout) for x in (call.q, call.k, call.v)))
        made = launched(inputs, self.given, [torch.empty_like(x) for x in inputs])
        return *as_prepared(made, layout), *(call.cu_seqlens or ())

    def why_not(self, kernel: Kernel) -> str | None:
        """Returns why a kernel does not compute these gradients: it has none of the logsumexp."""
        if self.given.grad_lse is not None and "dlse" in unread(kernel):
            return "it takes no gradient of the logsumexp"
        return None

    def plan(self, chosen: Chosen, launches: Launches) -> BackwardPlan:
        """The plan that starts these launches."""
        layout = self.call.options.layout
        if hasattr(launches.launch, "results"):
            return LibraryGradients(chosen, layout, launches)
        call = self.call
        contiguous = all(x.stride(-1) == 1 for x in (call.q, call.k, call.v))
        return KernelGradients(chosen, layout, launches, contiguous)

    def in_pytorch(self, chosen: Chosen) -> BackwardPlan:
        """The plan that computes the gradients in PyTorch."""
        return PyTorchGradients(chosen, self.call.options)


@dataclass(frozen=True)
class KernelGradients:
    """Launches one compiled config, on the tensors' device and its current stream."""

    chosen: Chosen
    layout: str
    launches: Launches
    rows_contiguous: bool
    """Whether the rows of q, k and v are contiguous. If not, they are copied in each call."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the plan holds for the default scale."""
        return self.launches.launch.device_bytes

    def gradients(self, tensors: Tensors, given: Gradients, scale: float | None) -> Three:
        """Returns (dq, dk, dv), see `BackwardPlan.gradients`."""
        workload = self.chosen.workload
        assert workload is not None
        inputs: Sequence[Tensor] = tensors[:3]
        if not self.rows_contiguous:
            inputs = with_contiguous_rows(*tensors[:3])
        q, k, v = inputs
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        starts = tensors.cu_seqlens or ()
        made = *launched(inputs, given, grads), *starts
        launch = self.launches.launch
        if scale is not None and scale != workload.head_dim**-0.5:
            launch = self.launches.for_scale(
                scale, lambda: (*as_prepared(made[:10], self.layout), *starts)
            )
        self.launches.start(launch, made)
        return grads if self.rows_contiguous else like(grads, tensors)


@dataclass(frozen=True)
class LibraryGradients:
    """Calls a library on the tensors of a call, on their device and its current stream."""

    chosen: Chosen
    layout: str
    launches: Launches
    device_bytes = 0

    def gradients(self, tensors: Tensors, given: Gradients, scale: float | None) -> Three:
        """Returns (dq, dk, dv), see `BackwardPlan.gradients`."""
        made = launched(tensors[:3], given, ())
        of_call = (
            *as_prepared(made, self.layout),
            *(None, None, None),
            *(tensors.cu_seqlens or ()),
        )
        grads = results(self.launches, of_call, scale, self.chosen.workload)
        return like([heads_first(grad, self.layout) for grad in grads], tensors)


@dataclass(frozen=True)
class PyTorchGradients:
    """Computes gradients in PyTorch, see `tunefa.runtime.in_pytorch`."""

    chosen: Chosen
    options: Options
    device_bytes: int = 0

    def gradients(self, tensors: Tensors, given: Gradients, scale: float | None) -> Three:
        """Returns (dq, dk, dv), see `BackwardPlan.gradients`."""
        call, layout = Call.of(tensors, self.options, scale), self.options.layout
        if has_no_numbers(call.q):
            dq, dk, dv = map(torch.zeros_like, tensors[:3])
            return dq, dk, dv
        out, grad_out = (heads_first(x, layout) for x in (given.out, given.grad_out))
        grads = in_pytorch.gradients(call, out, given.lse, grad_out, given.grad_lse)
        return like([heads_first(grad, layout) for grad in grads], tensors)


def launched(
    inputs: Sequence[Tensor], given: Gradients, grads: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Returns (q, k, v, out, lse, dout, dlse, *grads). Without a gradient of the logsumexp, dlse is
    one zero with strides of 0."""
    dlse = given.grad_lse
    if dlse is None:
        dlse = _zeros(given.lse.device, given.lse.shape)
    return *inputs, given.out, given.lse, given.grad_out, dlse, *grads


def as_prepared(made: Sequence[Tensor], layout: str) -> tuple[Tensor, ...]:
    """Returns the tensors that `launched` returns with heads first."""
    return tuple(x if i in (4, _DLSE) else heads_first(x, layout) for i, x in enumerate(made))


def like(grads: Sequence[Tensor], tensors: Tensors) -> Three:
    """Returns the gradients with dtype and strides of `torch.empty_like` of q, k and v, as the fake
    op has them; those that have others are copied."""
    dq, dk, dv = (_like(*pair) for pair in zip(grads, tensors[:3], strict=True))
    return dq, dk, dv


def _like(grad: Tensor, tensor: Tensor) -> Tensor:
    if tensor.is_contiguous() and (grad.dtype, grad.stride()) == (tensor.dtype, tensor.stride()):
        return grad
    made = torch.empty_like(tensor)
    if (grad.dtype, grad.stride()) == (made.dtype, made.stride()):
        return grad
    return made.copy_(grad)


@functools.lru_cache(maxsize=256)  # `expand` takes as long as an allocation
def _zeros(device: torch.device, shape: tuple[int, ...]) -> Tensor:
    return zero(device).expand(shape)


@functools.cache
def zero(device: torch.device) -> Tensor:
    """A zero in fp32 on a device, which all launches share. It is never freed, because CUDA graphs
    hold its address."""
    # A copy from the host's memory has ended when it returns, so that every stream sees it.
    made = torch.zeros((), dtype=torch.float32)  # whatever the default dtype is
    return apart(device.index, lambda: made.to(device)) if device.type == "cuda" else made
