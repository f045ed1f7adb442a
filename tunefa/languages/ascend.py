"""Triton for Huawei's Ascend NPUs: compiled up to and with the planning of memory, with no NPU.

Whether a config fits is the vendor's own answer. What is left out is the last step, from planned
code to a binary, which only CANN has: nothing here is launched.

A kernel file in this language defines

* `variant(workload, config, aligned) -> dict`: `function`, its name in the file; `signature` and
  `constants`, as in Triton; `flags` of the compiler by name ("enable-auto-multi-buffer").

It is imported by the front end's own Python, so it imports triton and nothing of tunefa's, and its
programs walk over tiles by `tl.num_programs(0)`: there is one for each core.

The front end and the compiler are in an environment of their own, which `tunefa ascend setup`
makes. Verdicts are kept in tunefa's cache folder, by everything that they depend on.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunefa.arch import Arch, NpuArch, npu
from tunefa.ascend import back_end, cache, front_end, sidecar
from tunefa.ascend.verdict import Verdict
from tunefa.errors import TunefaError
from tunefa.kernel import Kernel
from tunefa.languages import Compiled, CompileError, Launch
from tunefa.trial import Config, Outcome, Resources
from tunefa.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

_OUTCOMES: Mapping[str, Outcome] = {"crash": "crashed", "timeout": "timeout"}


def compile(
    kernel: Kernel, workload: Workload, config: Config, arch: Arch, aligned: bool = True
) -> Compiled:
    """The config as planned for `arch`: its binary is the `Verdict`, and there is no other.

    Raises CompileError where it does not fit, with what it asks of each memory, or does not
    compile; TunefaError when there is no compiler for that arch.
    """
    if why := why_no_compiler(arch):
        raise TunefaError(why)
    start = time.perf_counter()
    found = verdict(kernel, kernel.module.variant(workload, config, aligned), npu(arch))
    seconds = time.perf_counter() - start
    resources = _resources(found)
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
    task = front_end.Task(
        source=kernel.source,
        source_hash=kernel.source_hash,
        function=variant["function"],
        signature=tuple(variant["signature"].items()),
        constants=tuple(variant["constants"].items()),
        target=arch.target,
    )
    try:
        ir = front_end.lowered(tools, task)
    except front_end.FrontEndError as error:
        return Verdict("error", str(error))
    key = back_end.key(tools, ir, arch.target, variant["flags"])
    found = cache.load(key)
    if found is None:
        found = back_end.compile(tools, ir, arch.target, variant["flags"])
        if found.status not in _OUTCOMES:
            cache.save(key, found)
    return found


def binary_key(kernel: Kernel, workload: Workload, config: Config, aligned: bool) -> Hashable:
    """Everything of a `variant` that the front end and the compiler see."""
    variant = kernel.module.variant(workload, config, aligned)
    parts = (variant[name].items() for name in ("signature", "constants", "flags"))
    return kernel.name, variant["function"], *map(tuple, parts)


def prepare(
    kernel: Kernel,
    compiled: Compiled,
    tensors: Sequence[Tensor],
    workload: Workload,
    config: Config,
    scale: float,
    softcap: float | None = None,
) -> Launch:
    """Raises CompileError: what is compiled here ends with planned memory."""
    raise CompileError("kernels for Ascend are planned here, and CANN makes what runs on an NPU")


def why_no_interpreter() -> str:
    """Why a result is not checked."""
    return "kernels for Ascend are checked by tunefa's tests, not in a search"


def why_no_compiler(arch: Arch) -> str | None:
    """Why it cannot compile for `arch` here, and what to do; None if it can."""
    if not isinstance(arch, NpuArch):
        return f"{arch.name} is no NPU of Huawei"
    if "bishengir" not in arch.features:
        return f"no compiler of kernels knows {arch.name}: formulas are all there is"
    try:
        sidecar.installed()
    except TunefaError as error:
        return str(error)
    return None


def versions() -> dict[str, str]:
    """`triton`, the front end, and `compiler`."""
    found = sidecar.installed()
    return {
        "triton": f"ascend {found.front_end}",
        "compiler": f"bishengir-compile {found.version}",
    }


def _resources(found: Verdict) -> Resources:
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
    )
