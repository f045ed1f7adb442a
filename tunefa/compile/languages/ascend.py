"""Triton for Huawei's Ascend NPUs. Configs are compiled without an NPU, up to the memory plan.

The vendor's compiler decides whether a config fits the memories of a core. The last step, from
planned code to a binary, is left out, because it is only in CANN, Huawei's toolkit. triton-ascend
does it at the first launch on an NPU.

A kernel file in this language defines

* `variant(workload, config, aligned) -> dict`: `source`, the file with the device code, by its path
  from `kernels/`; `function`, the kernel's name there; `signature` and `constants`, as in Triton;
  `flags` of the compiler by name ("enable-auto-multi-buffer");
* `device_function()`: imports that file and returns the kernel;
* `triton_config(config) -> (dict, dict)`: parameters and options of a `triton.Config` for it, with
  the flags as triton-ascend names them.

The Python of the front end imports the device code, so it imports triton but nothing of tunefa.
There is one program for each core, which loops over tiles in steps of `tl.num_programs(0)`.

The front end and the compiler are in their own environment, which `tunefa ascend setup` makes.
Compiler reports are cached in tunefa's cache folder; keys are hashes of all that they depend on.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunefa.compile.ascend import back_end, cache, front_end, toolchain
from tunefa.compile.ascend.compiler_report import CompilerReport
from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.arch import Arch, Device, NpuArch
from tunefa.spec.arch_catalog import npu
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, MemoryPlan, Outcome, Resources

if TYPE_CHECKING:
    from torch import Tensor

_OUTCOMES: Mapping[str, Outcome] = {"crash": "crashed", "timeout": "timeout"}
_COMPILER = "bishengir-compile "
_IGNORED_FLAGS = {
    "1.1.0": frozenset(
        {"tile-mix-vector-loop", "tile-mix-cube-loop", "set-workspace-multibuffer"}
        | {"enable-hivm-auto-cv-balance"}
    ),
    "1.2.0": frozenset({"tile-mix-cube-loop", "enable-hivm-auto-cv-balance"}),
}
"""By version of the compiler, flags that it accepts but ignores: for four tiles of a FlashAttention
forward, their values did not change the last IR."""


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Compiles a config for the case's arch, up to the memory plan. The binary is the report.

    Raises CompileError if the config does not fit (with what it needs of each memory) or does not
    compile, and TunefaError if there is no compiler for the arch.
    """
    if why := why_no_compiler(case.arch):
        raise TunefaError(why)
    kernel, arch = case.kernel, npu(case.arch)
    start = time.perf_counter()
    found = compiler_report(kernel, kernel.module.variant(case.workload, config, aligned), arch)
    seconds = time.perf_counter() - start
    resources = _resources(found, arch)
    if found.status != "fits":
        raise CompileError(
            found.reason,
            _OUTCOMES.get(found.status, "compile_failed"),
            resources if found.memories else None,
        )
    return Compiled(found, lambda: resources, seconds)


def compiler_report(kernel: Kernel, variant: Mapping[str, Any], arch: NpuArch) -> CompilerReport:
    """Returns the compiler's report on a `variant`.

    Reports are cached, except crashes and time-outs, which may not happen again.
    """
    tools = toolchain.installed()
    try:
        ir = front_end.lowered(tools, front_end.Task.of(kernel, variant, arch))
    except front_end.FrontEndError as error:
        return CompilerReport("error", str(error))
    flags = _effective_flags(variant["flags"], tools.short_version)
    key = back_end.key(tools, ir, arch.compiler_target, flags)
    found = cache.load(key)
    if found is None:
        found = back_end.compile(tools, ir, arch.compiler_target, flags)
        if found.status not in _OUTCOMES:
            cache.save(key, found)
    return found


def binary_key(case: Case, config: Config, aligned: bool) -> Hashable:
    """Returns all inputs of front end and compiler, without the flags that the compiler ignores."""
    variant = case.kernel.module.variant(case.workload, config, aligned)
    flags = _effective_flags(variant["flags"], versions()["compiler"])
    parts = (each.items() for each in (variant["signature"], variant["constants"], flags))
    return case.kernel.name, variant["function"], *map(tuple, parts)


def trial_key(case: Case, config: Config) -> Hashable:
    """Returns the `binary_key`, which has the tiles and lengths: a launch adds nothing else."""
    return binary_key(case, config, True)


def prepare(spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor]) -> Launch:
    """Prepares a launch by triton-ascend, which compiles the config with CANN at the first call.

    Raises CompileError if there is no NPU.
    """
    device = available_npu()
    if device is None:
        raise CompileError("launching it needs an NPU, torch_npu, triton-ascend and CANN")
    return _Launch(spec, device.sms)


@dataclass(frozen=True)
class _Launch:
    """A launch with one program for each core, or for each tile if there are fewer tiles."""

    spec: LaunchSpec
    cores: int
    device_bytes = 0

    def __call__(self, *tensors: Tensor) -> None:
        module = self.spec.case.kernel.module
        grid, arguments = self.spec.arguments(tensors)
        _, options = module.triton_config(self.spec.config)
        module.device_function()[(min(self.cores, grid[0]),)](*arguments, **options)


def available_npu() -> Device | None:
    """Returns the NPU of this machine; None if torch_npu and triton-ascend cannot use one.

    This has not been tested with an NPU.
    """
    if importlib.util.find_spec("torch_npu") is None:
        return None
    torch, triton = importlib.import_module("torch"), importlib.import_module("triton")
    importlib.import_module("torch_npu")
    if not hasattr(triton.Config({}), "multibuffer") or not torch.npu.is_available():
        return None
    arch, device = archs.find(torch.npu.get_device_name(0))
    return device if isinstance(arch, NpuArch) else None


def why_no_interpreter() -> str:
    """Returns why a result is not checked."""
    return "kernels for Ascend are checked by tunefa's tests, not in a search"


def why_no_compiler(arch: Arch) -> str | None:
    """Returns why it cannot compile for `arch`, and what to install; None if it can."""
    if not isinstance(arch, NpuArch):
        return f"{arch.name} is not an NPU of Huawei"
    if "bishengir" not in arch.features:
        return f"no kernel compiler supports {arch.name}: only formulas say whether a config fits"
    try:
        return back_end.why_not(toolchain.installed(), arch.compiler_target)
    except TunefaError as error:
        return str(error)


def versions() -> dict[str, str | None]:
    """Returns the versions of `triton`, the front end, and `compiler`; None if not installed."""
    try:
        found = toolchain.installed()
    except TunefaError:
        return {"triton": None, "compiler": None}
    return {
        "triton": f"ascend {found.front_end}",
        "compiler": f"{_COMPILER}{found.version}",
    }


quick_versions = versions  # `versions` only reads a file


def _effective_flags(flags: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Returns the flags without those that this version ignores."""
    short = (version or "").removeprefix(_COMPILER).partition(" ")[0]
    return {k: v for k, v in flags.items() if k not in _IGNORED_FLAGS.get(short, ())}


def _resources(found: CompilerReport, arch: NpuArch) -> Resources:
    """Returns, by memory, what a config that overflows needs; else the highest address in use."""
    wanted = {
        name: memory.required_bytes if memory.overflows else memory.peak_bytes
        for name, memory in found.memories.items()
    }
    return Resources(
        ub_bytes=wanted.get("ub"),
        l1_bytes=wanted.get("l1"),
        l0c_bytes=wanted.get("l0c"),
        workspace_bytes=found.workspace_bytes,
        planned=MemoryPlan(_excess(found, arch), found.changed),
        code=found.code,
    )


def _excess(found: CompilerReport, arch: NpuArch) -> dict[str, float]:
    """Returns `MemoryPlan.excess`.

    A config may overflow though it requires exactly what is available; this counts as one byte.
    """
    excess = {}
    for name, memory in found.memories.items():
        available = memory.available_bytes or arch.capacities[name]
        if memory.overflows:
            excess[name] = max(1, (memory.required_bytes or 0) - available) / available
        elif memory.peak_bytes is not None:
            excess[name] = (memory.peak_bytes - available) / available
    return excess
