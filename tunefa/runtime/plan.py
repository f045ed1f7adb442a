"""A plan runs calls with one kernel and config, or in PyTorch where no kernel serves them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError
from tunefa.runtime import choose, in_pytorch
from tunefa.runtime.argument_checks import DTYPES
from tunefa.runtime.call import Call, Options, Tensors, heads_first, no_descales
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.kernel_plan import KernelPlan, Launches, all_heads_first, with_contiguous_rows
from tunefa.runtime.lock_file import LockFile
from tunefa.spec.arch import Arch
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import DTYPES as WORKLOAD_DTYPES
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice
from tunefa.store.results import Store

PYTORCH = "pytorch"
_MAX_STRIDE = 2**31
"""Kernels take strides as 32-bit integers, except that of the batch."""

Compile = Callable[[Case, Config, bool], Compiled]
"""Compiles a config for tensors that are aligned, or not; see `tunefa.runtime.compiled`."""


class Plan(Protocol):
    """Runs all calls of one key, see `tunefa.runtime.call.plan_key`."""

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
        if call.q.is_meta:
            return call.new_out(), call.new_lse()
        out, lse = in_pytorch.attention(call)
        return heads_first(out, self.options.layout).contiguous(), lse

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """Runs a call; returns `out` alone, contiguous in the call's layout."""
        call = Call.of(tensors, self.options, scale)
        if call.q.is_meta:
            return call.new_out()
        return heads_first(in_pytorch.output(call), self.options.layout).contiguous()


def pytorch_plan(call: Call, why: str, workload: Workload | None = None) -> Plan:
    """The plan that runs a call in PyTorch; `why` is the reason why no kernel runs it."""
    chosen = Chosen(PYTORCH, {}, "pytorch", f"{PYTORCH}: {why}", workload)
    return PyTorchPlan(chosen, call.options)


def best_plan(
    call: Call, chip: Chip, store: Store, kernels: Sequence[Kernel], compile: Compile
) -> Plan:
    """The plan for a call on a chip: with the config that lookup finds; if that does not compile,
    with the kernel's default; then with the other kernels, in the same way; else in PyTorch.

    Warns where a config does not compile, as the call is slower then than it could be.
    """
    try:
        workload, target = _served(call, chip)
        left = _readable(call, workload, target.arch, _compilable(kernels, target.arch))
        choice = choose.choose(store, workload, target, left)
    except TunefaError as error:
        return pytorch_plan(call, str(error))
    reasons: list[str] = []
    while True:
        case = Case(next(each for each in left if each.name == choice.kernel), workload, target)
        try:
            return _first_that_compiles(call, choice, case, compile)
        except TunefaError as error:  # there is no compiler, say
            reasons.append(str(error))
        left = [each for each in left if each is not case.kernel]
        try:
            choice = choose.choose(store, workload, target, left)
        except TunefaError:  # no other kernel serves the workload
            break
    why = "; ".join(dict.fromkeys(reasons))
    warnings.warn(f"attention runs in PyTorch: {why}", stacklevel=2)
    return pytorch_plan(call, why, workload)


def _first_that_compiles(call: Call, choice: Choice, case: Case, compile: Compile) -> Plan:
    """The plan with the choice's config, or else with the kernel's default.

    Warns of a config that does not compile. Raises TunefaError if neither does.
    """
    kernel = case.kernel
    aligned = _is_aligned(call, kernel)
    for chosen in configs_to_try(choice, case, aligned):
        try:
            compiled = compile(case, chosen.config, aligned)
            return _prepared(call, chosen, case, compiled)
        except CompileError as error:
            warnings.warn(f"{kernel.name} {chosen.config} is not used: {error}", stacklevel=3)
    raise TunefaError(f"no config of {kernel.name} runs {case.workload} on {case.arch.name}")


def frozen_plan(
    call: Call, chip: Chip, lock: LockFile, installed: Installed, compile: Compile
) -> Plan:
    """The plan for a call on a chip with exactly the config of a lock file's record.

    Raises TunefaError where there is no record, or its config cannot run.
    """
    try:
        workload, target = _served(call, chip)
    except TunefaError as error:
        what = f"call with q {tuple(call.q.shape)}, k {tuple(call.k.shape)}, {call.q.dtype}"
        raise lock.serves_no(f"{what} on {chip.name}", str(error)) from None
    record = lock.exact(workload, target)
    kernel, remark = lock.kernel(record, target, installed)
    case = Case(kernel, workload, target)
    why = f"exact: frozen to {lock.path}, measured on {record.device} for {workload}"
    why += f"; {remark}" if remark else ""
    found = Chosen(kernel.name, dict(record.config), "exact", why, workload)
    try:
        aligned = _is_aligned(call, kernel)
        if not aligned and (needed := _needed(found.config, kernel)):
            parts = ", ".join(f"{name} is {found.config[name]}" for name in needed)
            raise TunefaError(f"{parts}, and the tensors are not 16-byte aligned: copy them")
        compiled = compile(case, found.config, aligned)
        return _prepared(call, found, case, compiled)
    except (CompileError, TunefaError) as error:
        raise lock.cannot(record, str(error)) from error


def plan_without_kernel(call: Call, lock: LockFile | None) -> Plan:
    """The plan for a call that is not on CUDA, or has a scale that kernels do not take.

    Raises TunefaError for a call on CUDA in a process that is frozen to `lock`.
    """
    chip = Chip.of(call.q.device)
    why = chip.why_not
    if not why:
        why = f"scale {call.scale} is not positive, and kernels multiply a row's maximum by it"
    if lock is not None and call.q.is_cuda:
        raise lock.serves_no(f"call with q {tuple(call.q.shape)} on {chip.name}", why)
    return pytorch_plan(call, why)


def _prepared(call: Call, chosen: Chosen, case: Case, compiled: Compiled) -> Plan:
    """The plan with a compiled config. Raises CompileError where the language's `prepare` does."""
    language = languages.load(case.kernel.language)
    softcap = call.softcap  # not `call`: the plan keeps `prepare`, and must not keep the tensors

    def prepare(tensors: Sequence[Tensor], scale: float) -> Launch:
        spec = LaunchSpec(case, chosen.config, scale, softcap)
        launch: Launch = language.prepare(spec, compiled, tensors)
        return launch

    tensors, device = _tensors(call), call.q.get_device()
    layout = call.options.layout
    q, out = heads_first(call.q, layout), heads_first(tensors[3], layout)
    return KernelPlan(
        chosen,
        layout,
        Launches(device, prepare(tensors, float(q.shape[-1] ** -0.5)), prepare),
        rows_contiguous=all(x.stride(-1) == 1 for x in (call.q, call.k, call.v)),
        out_like_q=(q.shape, q.stride(), q.dtype) == (out.shape, out.stride(), out.dtype),
        no_descales=no_descales(q),
    )


def configs_to_try(choice: Choice, case: Case, aligned: bool) -> Iterator[Chosen]:
    """Yields the configs to try: the one that lookup found, then the kernel's default.

    Where the tensors are not `aligned`, they have the parameters that the kernel needs for such
    tensors. A config that the space refuses is left out.
    """
    workload = case.workload
    found = Chosen(choice.kernel, dict(choice.config), choice.how, choice.why, workload)
    yield from _feasible(found, case, aligned)
    if choice.how != "default":
        why = f"default: the config that was found cannot run here ({choice.why})"
        default = Chosen(choice.kernel, case.default(), "default", why, workload)
        yield from _feasible(default, case, aligned)


def _feasible(chosen: Chosen, case: Case, aligned: bool) -> Iterator[Chosen]:
    config = chosen.config
    if not aligned and (needed := _needed(config, case.kernel)):
        changes = ", ".join(f"{name} is {needed[name]}, not {config[name]}" for name in needed)
        why = f"{chosen.why}; {changes}: the tensors are not 16-byte aligned"
        chosen = replace(chosen, config={**config, **needed}, why=why)
    if case.refusal(chosen.config) is None:
        yield chosen


def _needed(config: Config, kernel: Kernel) -> dict[str, Any]:
    """The parameters to change, with their new values, for tensors that are not aligned.

    Raises TunefaError where the kernel cannot read such tensors.
    """
    if isinstance(kernel.unaligned, str):
        raise TunefaError(kernel.unaligned)
    return {
        name: value for name, value in kernel.unaligned.items() if config.get(name, value) != value
    }


def _compilable(kernels: Sequence[Kernel], arch: Arch) -> Sequence[Kernel]:
    """The kernels whose compiler is installed; all of them if no compiler is."""
    lacking = languages.without_compiler(kernels, arch)
    return [kernel for kernel in kernels if kernel.name not in lacking] or kernels


def _readable(
    call: Call, workload: Workload, arch: Arch, kernels: Sequence[Kernel]
) -> Sequence[Kernel]:
    """The kernels that can read the call's tensors, by their alignment.

    Raises TunefaError where no such kernel serves the workload.
    """
    unreadable = [
        each
        for each in kernels
        if isinstance(each.unaligned, str)
        and each.why_not(workload, arch) is None
        and not _is_aligned(call, each)
    ]
    rest = [each for each in kernels if each not in unreadable]
    if unreadable and all(each.why_not(workload, arch) for each in rest):
        why = "; ".join(
            f"{each.name}: {each.unaligned if each in unreadable else each.why_not(workload, arch)}"
            for each in kernels
        )
        raise TunefaError(f"no kernel reads these tensors of {workload} on {arch.name} ({why})")
    return rest


def _served(call: Call, chip: Chip) -> tuple[Workload, Target]:
    """The workload and target to look up. Raises TunefaError where no kernel can serve the call."""
    if chip.target is None:
        raise TunefaError(chip.why_not)
    if call.empty:
        raise TunefaError("a tensor is empty: there is nothing to compute")
    if DTYPES[call.q.dtype] not in WORKLOAD_DTYPES:
        raise TunefaError(f"no kernel takes {call.q.dtype}")
    for name, tensor in (("q", call.q), ("k", call.k), ("v", call.v)):
        if max(tensor.stride()[1:]) >= _MAX_STRIDE:
            raise TunefaError(f"{name} has strides {tensor.stride()}, too large for 32 bits")
    return call.workload(), chip.target


def _is_aligned(call: Call, kernel: Kernel) -> bool:
    tensors = _tensors(call)
    # An expanded tensor has a stride of 0. No source says that TMA takes one.
    expanded = any(
        step == 0 and size > 1
        for tensor in tensors
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return not expanded and bool(kernel.module.is_aligned(tensors))


def _tensors(call: Call) -> tuple[Tensor, ...]:
    """The call's tensors with new out and lse, with heads first, as launches are prepared."""
    layout = call.options.layout
    q, k, v = (heads_first(tensor, layout) for tensor in (call.q, call.k, call.v))
    q, k, v = with_contiguous_rows(q, k, v)  # as the plan does for each call
    more = call.descales if call.cu_seqlens is None else call.cu_seqlens
    return all_heads_first((q, k, v, call.new_out(), call.new_lse(), *more), layout)
