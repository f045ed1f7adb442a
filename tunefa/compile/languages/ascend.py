"""Triton for Huawei's Ascend NPUs: compiled up to and with the planning of memory, with no NPU.

Whether a config fits is the vendor's own answer. What is left out is the last step, from planned
code to a binary, which only CANN has: nothing here is launched.

A kernel file in this language defines

* `variant(workload, config, aligned) -> dict`: `source`, the file with the device code, by its path
  from `kernels/`; `function`, the kernel's name there; `signature` and `constants`, as in Triton;
  `flags` of the compiler by name ("enable-auto-multi-buffer");
* `device_function()`: imports that file and returns the kernel;
* `triton_config(config) -> (dict, dict)`: parameters and options of a `triton.Config` for it, the
  flags as triton-ascend names them.

The device code is imported by the front end's own Python, so it imports triton and nothing of
tunefa's, and its programs walk over tiles by `tl.num_programs(0)`: there is one for each core.

The front end and the compiler are in an environment of their own, which `tunefa ascend setup`
makes. Verdicts are kept in tunefa's cache folder, by everything that they depend on.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunefa.compile.ascend import back_end, cache, front_end, sidecar
from tunefa.compile.ascend.verdict import Verdict
from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.arch import Arch, Device, NpuArch
from tunefa.spec.arch_catalog import npu
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Outcome, Planned, Resources

if TYPE_CHECKING:
    from torch import Tensor

_OUTCOMES: Mapping[str, Outcome] = {"crash": "crashed", "timeout": "timeout"}
_COMPILER = "bishengir-compile "
_UNHEEDED = {
    "1.1.0": frozenset(
        {"tile-mix-vector-loop", "tile-mix-cube-loop", "set-workspace-multibuffer"}
        | {"enable-hivm-auto-cv-balance"}
    ),
    "1.2.0": frozenset({"tile-mix-cube-loop", "enable-hivm-auto-cv-balance"}),
}
"""By version of the compiler, flags that it takes and that change nothing: on four tiles of the
FlashAttention forward, the last IR was the same for each of their values."""


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Returns the config as the compiler plans it for the case's arch; its binary is the `Verdict`.

    Raises CompileError where it does not fit, with what it asks of each memory, or does not
    compile; TunefaError when there is no compiler for that arch.
    """
    if why := why_no_compiler(case.arch):
        raise TunefaError(why)
    kernel, arch = case.kernel, npu(case.arch)
    start = time.perf_counter()
    found = verdict(kernel, kernel.module.variant(case.workload, config, aligned), arch)
    seconds = time.perf_counter() - start
    resources = _resources(found, arch)
    if found.status != "fits":
        raise CompileError(
            found.reason,
            _OUTCOMES.get(found.status, "compile_failed"),
            resources if found.memories else None,
        )
    return Compiled(found, lambda: resources, seconds)


def verdict(kernel: Kernel, variant: Mapping[str, Any], arch: NpuArch) -> Verdict:
    """What the front end and the compiler say of a `variant`; crashes and time-outs are not kept,
    for the next run may end otherwise."""
    tools = sidecar.installed()
    try:
        ir = front_end.lowered(tools, front_end.Task.of(kernel, variant, arch))
    except front_end.FrontEndError as error:
        return Verdict("error", str(error))
    flags = _heeded(variant["flags"], tools.short_version)
    key = back_end.key(tools, ir, arch.target, flags)
    found = cache.load(key)
    if found is None:
        found = back_end.compile(tools, ir, arch.target, flags)
        if found.status not in _OUTCOMES:
            cache.save(key, found)
    return found


def binary_key(case: Case, config: Config, aligned: bool) -> Hashable:
    """Everything of a `variant` that the front end and the compiler see and heed."""
    variant = case.kernel.module.variant(case.workload, config, aligned)
    flags = _heeded(variant["flags"], versions()["compiler"])
    parts = (each.items() for each in (variant["signature"], variant["constants"], flags))
    return case.kernel.name, variant["function"], *map(tuple, parts)


def trial_key(case: Case, config: Config) -> Hashable:
    """Equal for configs that are one trial: tiles and lengths are all that a launch adds to a
    program, and both are in it."""
    return binary_key(case, config, True)


def prepare(spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor]) -> Launch:
    """Launches through triton-ascend, which has CANN compile it at the first launch.

    What is compiled here ends with planned memory. Raises CompileError where there is no NPU.
    """
    device = npu_there()
    if device is None:
        raise CompileError("it takes an NPU, with torch_npu, triton-ascend and CANN, to launch it")
    return _Launch(spec, device.sms)


@dataclass(frozen=True)
class _Launch:
    """One program for each core, or for each tile where these are fewer."""

    spec: LaunchSpec
    cores: int
    device_bytes = 0

    def __call__(self, *tensors: Tensor) -> None:
        module = self.spec.case.kernel.module
        grid, arguments = self.spec.arguments(tensors)
        _, options = module.triton_config(self.spec.config)
        module.device_function()[(min(self.cores, grid[0]),)](*arguments, **options)


def npu_there() -> Device | None:
    """The NPU of this machine; None without one that torch_npu and triton-ascend can use.

    Not run with one.
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
    """Why a result is not checked."""
    return "kernels for Ascend are checked by tunefa's tests, not in a search"


def why_no_compiler(arch: Arch) -> str | None:
    """Why it cannot compile for `arch` here, and what to do; None if it can."""
    if not isinstance(arch, NpuArch):
        return f"{arch.name} is no NPU of Huawei"
    if "bishengir" not in arch.features:
        return f"no compiler of kernels knows {arch.name}, and formulas are all there is"
    try:
        return back_end.why_not(sidecar.installed(), arch.target)
    except TunefaError as error:
        return str(error)


def versions() -> dict[str, str | None]:
    """`triton`, the front end, and `compiler`; None where they are not installed."""
    try:
        found = sidecar.installed()
    except TunefaError:
        return {"triton": None, "compiler": None}
    return {
        "triton": f"ascend {found.front_end}",
        "compiler": f"{_COMPILER}{found.version}",
    }


at_hand = versions  # they are read from a file


def _heeded(flags: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Without those that this version takes and does nothing with."""
    short = (version or "").removeprefix(_COMPILER).partition(" ")[0]
    return {k: v for k, v in flags.items() if k not in _UNHEEDED.get(short, ())}


def _resources(found: Verdict, arch: NpuArch) -> Resources:
    """What it asks for where it overflows, the highest address it uses where it fits."""
    wanted = {
        name: memory.required_bytes if memory.overflows else memory.peak_bytes
        for name, memory in found.memories.items()
    }
    return Resources(
        ub_bytes=wanted.get("ub"),
        l1_bytes=wanted.get("l1"),
        l0c_bytes=wanted.get("l0c"),
        workspace_bytes=found.workspace_bytes,
        planned=Planned(_excess(found, arch), found.changed, found.code),
    )


def _excess(found: Verdict, arch: NpuArch) -> dict[str, float]:
    """See `Planned`. A memory that overflows with all that there is asked for lacks a byte."""
    excess = {}
    for name, memory in found.memories.items():
        available = memory.available_bytes or arch.capacities[name]
        if memory.overflows:
            excess[name] = max(1, (memory.required_bytes or 0) - available) / available
        elif memory.peak_bytes is not None:
            excess[name] = (memory.peak_bytes - available) / available
    return excess
