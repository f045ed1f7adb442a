"""What runs a call: a kernel with a compiled config, or PyTorch where no kernel does."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from tunefa import arch as archs
from tunefa import languages, reference
from tunefa.arch import Arch
from tunefa.call import DTYPES, Call, heads_first
from tunefa.errors import TunefaError
from tunefa.frozen import Frozen, Installed
from tunefa.kernel import Kernel
from tunefa.languages import Compiled, CompileError
from tunefa.lookup import Choice, How, lookup
from tunefa.store import Store
from tunefa.trial import Config
from tunefa.workload import DTYPES as WORKLOAD_DTYPES
from tunefa.workload import Workload

PYTORCH = "pytorch"
_MAX_STRIDE = 2**31
"""Kernels take strides as 32-bit integers, but for the batch's."""

Compile = Callable[[Kernel, Workload, Config, Arch, bool], Compiled]
"""A language's `compile`; the runtime's remembers what it compiled."""


@dataclass(frozen=True)
class Chosen:
    """What ran a call of `flash_attention`, and why that."""

    kernel: str
    """A kernel's name, or `pytorch`."""
    config: dict[str, Any]
    """Empty for `pytorch`."""
    how: How | Literal["pytorch"]
    why: str
    """One sentence for people."""
    workload: Workload | None
    """None where the call is none that a kernel could serve."""


@dataclass(frozen=True)
class Chip:
    """What there is to know about a device before choosing for it."""

    name: str
    """As the driver says it."""
    arch: Arch | None
    why_not: str = ""
    """Why kernels do not run on it; "" where there is an arch."""

    @classmethod
    def of(cls, device: torch.device) -> Chip:
        """The chip behind a PyTorch device."""
        if device.type != "cuda":
            return cls(device.type, None, f"q is on {device.type}, and kernels run on CUDA devices")
        name = torch.cuda.get_device_name(device)
        if torch.version.hip is not None:  # its capabilities are numbered like NVIDIA's
            return cls(name, None, f"{name} is an AMD device, and there is no kernel for it")
        major, minor = torch.cuda.get_device_capability(device)
        known = archs.names()
        if f"sm{major}{minor}" not in known:
            why = f"there is no arch sm{major}{minor} for {name} (known: {', '.join(known)})"
            return cls(name, None, why)
        return cls(name, archs.load(f"sm{major}{minor}"))


class Plan(Protocol):
    """Runs every call of one shape."""

    @property
    def chosen(self) -> Chosen:
        """What it runs."""

    def run(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
        """(out, lse) of a call; out in the call's layout."""


@dataclass(frozen=True)
class PyTorchPlan:
    """Computes in PyTorch."""

    chosen: Chosen
    causal: bool
    layout: str

    @classmethod
    def because(cls, call: Call, why: str, workload: Workload | None = None) -> PyTorchPlan:
        """The plan for a call that no kernel runs, and the reason."""
        chosen = Chosen(PYTORCH, {}, "pytorch", f"{PYTORCH}: {why}", workload)
        return cls(chosen, call.causal, call.layout)

    def run(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
        """(out, lse) of a call; out in the call's layout."""
        call = Call.of(q, k, v, self.causal, scale, self.layout)
        result, lse = reference.attention(call.q, call.k, call.v, call.causal, call.scale)
        out = call.new_out()
        heads_first(out, self.layout).copy_(result)
        return out, lse


@dataclass(frozen=True)
class KernelPlan:
    """Launches one compiled config, on the tensors' device and its current stream."""

    chosen: Chosen
    kernel: Kernel
    language: ModuleType
    compiled: Compiled
    workload: Workload
    layout: str
    device: int

    @functools.cached_property
    def _out_shape(self) -> tuple[int, int, int, int]:
        w = self.workload
        if self.layout == "bhsd":
            return w.batch, w.heads, w.seqlen_q, w.head_dim_v
        return w.batch, w.seqlen_q, w.heads, w.head_dim_v

    @functools.cached_property
    def _lse_shape(self) -> tuple[int, int, int]:
        return self.workload.batch, self.workload.heads, self.workload.seqlen_q

    @functools.cached_property
    def _default_scale(self) -> float:
        return float(self.workload.head_dim**-0.5)

    def run(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
        """(out, lse) of a call; out in the call's layout."""
        out = q.new_empty(self._out_shape)
        lse = q.new_empty(self._lse_shape, dtype=torch.float32)
        tensors = _arguments(self.layout, q, k, v, out, lse)
        if scale is None:
            scale = self._default_scale
        if torch.cuda.current_device() == self.device:
            self._launch(tensors, scale)
        else:
            with torch.cuda.device(self.device):
                self._launch(tensors, scale)
        return out, lse

    def _launch(self, tensors: tuple[Tensor, ...], scale: float) -> None:
        self.language.launch(
            self.kernel, self.compiled, tensors, self.workload, self.chosen.config, scale
        )


def of(call: Call, chip: Chip, store: Store, kernels: Sequence[Kernel], compile: Compile) -> Plan:
    """The plan for a call on a chip: the config that lookup finds if it compiles, the kernel's
    default, PyTorch.

    Warns where a config does not compile, or none does: what runs then is slower than it could be.
    """
    try:
        workload, arch = _served(call, chip)
        choice = lookup(store, workload, arch, chip.name, kernels)
    except TunefaError as error:
        return PyTorchPlan.because(call, str(error))
    kernel = next(each for each in kernels if each.name == choice.kernel)
    try:
        aligned = _is_aligned(call, kernel)
        for chosen in options(choice, kernel, workload, arch, aligned):
            try:
                compiled = compile(kernel, workload, chosen.config, arch, aligned)
            except CompileError as error:
                warnings.warn(f"{kernel.name} {chosen.config} is not used: {error}", stacklevel=2)
                continue
            language = languages.load(kernel.language)
            device = call.q.get_device()
            return KernelPlan(chosen, kernel, language, compiled, workload, call.layout, device)
        why = f"no config of {kernel.name} runs {workload} on {arch.name}"
    except TunefaError as error:  # there is no compiler, say
        why = str(error)
    warnings.warn(f"attention runs in PyTorch: {why}", stacklevel=2)
    return PyTorchPlan.because(call, why, workload)


def frozen(call: Call, chip: Chip, lock: Frozen, installed: Installed, compile: Compile) -> Plan:
    """The plan for a call on a chip: the record of a lock file as it stands.

    Raises TunefaError where there is none, or where it cannot run so.
    """
    try:
        workload, arch = _served(call, chip)
    except TunefaError as error:
        what = f"call with q {tuple(call.q.shape)}, k {tuple(call.k.shape)}, {call.q.dtype}"
        raise lock.serves_no(f"{what} on {chip.name}", str(error)) from None
    record = lock.exact(workload, arch, chip.name)
    kernel = lock.kernel(record, arch, installed)
    why = f"exact: frozen to {lock.path}, measured on {record.device} for {workload}"
    found = Chosen(kernel.name, dict(record.config), "exact", why, workload)
    try:
        aligned = _is_aligned(call, kernel)
        if not aligned and found.config.get("LOADS") == "tma":
            raise TunefaError("LOADS is tma, and the tensors are not 16-byte aligned: copy them")
        compiled = compile(kernel, workload, found.config, arch, aligned)
    except (CompileError, TunefaError) as error:
        raise lock.cannot(record, str(error)) from error
    language, device = languages.load(kernel.language), call.q.get_device()
    return KernelPlan(found, kernel, language, compiled, workload, call.layout, device)


def options(
    choice: Choice, kernel: Kernel, workload: Workload, arch: Arch, aligned: bool
) -> Iterator[Chosen]:
    """What to try, in this order: the config that was found, the kernel's default.

    Tensors that are not `aligned` cannot be read by TMA, so LOADS becomes `pointer` for them. A
    config that the space then refuses is left out.
    """
    found = Chosen(choice.kernel, dict(choice.config), choice.how, choice.why, workload)
    yield from _feasible(found, kernel, arch, aligned)
    if choice.how != "default":
        why = f"default: what was found cannot run here ({choice.why})"
        default = Chosen(kernel.name, kernel.default(workload, arch), "default", why, workload)
        yield from _feasible(default, kernel, arch, aligned)


def _feasible(chosen: Chosen, kernel: Kernel, arch: Arch, aligned: bool) -> Iterator[Chosen]:
    if not aligned and chosen.config.get("LOADS") == "tma":
        why = f"{chosen.why}; LOADS is pointer, not tma: the tensors are not 16-byte aligned"
        chosen = replace(chosen, config={**chosen.config, "LOADS": "pointer"}, why=why)
    assert chosen.workload is not None
    if kernel.refusal(chosen.config, chosen.workload, arch) is None:
        yield chosen


def _served(call: Call, chip: Chip) -> tuple[Workload, Arch]:
    """What lookup needs. Raises TunefaError with the reason why no kernel is asked."""
    if chip.arch is None:
        raise TunefaError(chip.why_not)
    if call.empty:
        raise TunefaError("a tensor is empty: there is nothing to compute")
    if DTYPES[call.q.dtype] not in WORKLOAD_DTYPES:
        raise TunefaError(f"no kernel takes {call.q.dtype}")
    for name, tensor in (("q", call.q), ("k", call.k), ("v", call.v)):
        if max(tensor.stride()[1:]) >= _MAX_STRIDE:
            raise TunefaError(f"{name} has strides {tensor.stride()}, and kernels take 32 bits")
    return call.workload(), chip.arch


def _is_aligned(call: Call, kernel: Kernel) -> bool:
    q, k, v = (heads_first(tensor, call.layout) for tensor in (call.q, call.k, call.v))
    tensors = _arguments(call.layout, q, k, v, call.new_out(), call.new_lse())
    # No source says that TMA takes a stride of 0, which an expanded tensor has.
    expanded = any(
        step == 0 and size > 1
        for tensor in tensors
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return not expanded and bool(kernel.module.is_aligned(tensors))


def _arguments(
    layout: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, ...]:
    """The tensors as kernels take them: heads first, rows contiguous, copied where they are not."""
    if q.stride(3) != 1:
        q = q.contiguous()
    if k.stride(3) != 1:
        k = k.contiguous()
    if v.stride(3) != 1:
        v = v.contiguous()
    if layout == "bhsd":
        return q, k, v, out, lse
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), out.transpose(1, 2), lse
