"""CUDA C++: compiled by NVRTC for any NVIDIA arch, without driver, CUDA toolkit or host compiler.

A kernel is `kernels/<name>.cu` with its host side `kernels/<name>.py`. The .cu is complete CUDA
C++: parameters are macros with defaults (`#ifndef BLOCK_N`, `#define BLOCK_N 64`, `#endif`), and
kernels are `extern "C"`. It may include files of tunefa by their path from `kernels/`
(`#include "cuda/ptx.cuh"`), but none of the CUDA toolkit, which is not in NVRTC's wheel.

The `.py` defines

* `variant(workload, config, aligned) -> dict`: `function`, its name in the .cu; `defines`, a value
  for each macro; `threads` of one block; `smem_bytes` of dynamic shared memory, unless the search
  space lays it out (`shared_memory`). In that case this module adds the size, and three macros for
  each region (`Q_OFFSET`, `Q_BYTES` of a slot, `Q_SLOTS`), for which the .cu has no defaults. With
  `overlaps_kernel_before` it may start while the kernel launched before it still runs (programmatic
  dependent launch), and waits for that kernel itself;
* `arguments(tensors, spec) -> (grid, arguments)`, with the arguments in the order of the kernel's
  parameters; `spec` is a `tunefa.compile.contract.LaunchSpec` (workload, config, scale, softcap,
  sms). An argument is
  - a tensor (a pointer): one of `tensors`, whose address may change from call to call, or a table,
    which the host side makes once for each launch that is prepared;
  - `(tensor, axis)` (an int): the current length of that axis of one of `tensors`;
  - a number or structure of ctypes (`c_int(7)`), passed by value;
  - `{"map": tensor, "box": sizes, "swizzle_bytes": 128}`: a CUtensorMap of one of `tensors`, for a
    `const __grid_constant__` parameter; with `shape` and `strides` if the map is of another view,
    and with `by_panels` if a copy brings whole rows, one panel as wide as the box after the other;
* `is_aligned(tensors) -> bool`: whether the aligned variant may read the tensors;
* optionally `specialize(workload, config, sms) -> dict`: for a config that is the best of another
  workload, better values for this one, of parameters that only the host side reads.

If another kernel of the .cu must run first in each call, the file also defines `preprocess`,
`scratch` and `preprocess_arguments`, as for Triton (see there), with variants of this language.

Cubins are kept in tunefa's cache folder; keys are hashes of all inputs of the compiler.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunefa.compile import contract, cubin_cache, machine_code, nvrtc
from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.compile.nvrtc import Cubin
from tunefa.errors import TunefaError
from tunefa.spec.arch import Arch
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources

if TYPE_CHECKING:
    from torch import Tensor

    from tunefa.compile.launch.driver import Driver

# Targets with an "a", whose instructions only that chip has: WGMMA, setmaxnreg, tcgen05.
_OF_ONE_CHIP = (90, 100)
# Without -default-device, NVRTC 13.0 takes generic lambdas in device functions for host functions.
_OPTIONS = ("-std=c++17", "--ptxas-options=-v", "-default-device")
_SOURCES = (".cu", ".cuh")


@dataclass(frozen=True)
class Binary:
    """A kernel in a cubin, and the size of its blocks."""

    cubin: Cubin
    function: str
    threads: int
    smem_bytes: int
    """Dynamic shared memory."""
    overlaps_kernel_before: bool = False
    """Whether it may start while the kernel launched before it still runs."""
    made_by: str = ""
    """The compiler's name and version, for errors; "" for the NVRTC that is installed."""

    @property
    def resources(self) -> Resources:
        """The resources of one block."""
        own = self.cubin.resources
        return replace(own, smem_bytes=(own.smem_bytes or 0) + self.smem_bytes)


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Compiles a config to a cubin for the case's arch.

    Raises CompileError, with file and line, if it does not compile, and TunefaError if there is no
    compiler for the arch.
    """
    if why := why_no_compiler(case.arch):
        raise TunefaError(why)
    start = time.perf_counter()
    made = variants(case, config, aligned)
    built = {step: _built(case.kernel, each, case.arch) for step, each in made.items()}
    resources = functools.partial(_resources, *built.values())
    return Compiled(inspect=resources, seconds=time.perf_counter() - start, **built)


def _resources(variant: Binary, *others: Binary) -> Resources:
    """Returns the resources of a variant; its code is also that of what runs before and after."""
    images = [each.cubin.image for each in (variant, *others)]
    launched = ((each.function, each.threads, each.smem_bytes) for each in (variant, *others))
    return replace(variant.resources, code=machine_code.code(images, *launched))


def variants(case: Case, config: Config, aligned: bool) -> dict[str, dict[str, Any]]:
    """Returns what is compiled for a config: the kernel, with its layout of shared memory if its
    space has one, and what runs before and after it, if anything does."""
    steps = contract.variants(case, config, aligned)
    layout = case.shared_memory(config)
    if layout is not None:
        made = steps["binary"]
        if taken := sorted(made["defines"].keys() & layout.macros):
            raise TunefaError(
                f"{case.kernel.name} has a macro {taken[0]}, which is one of its shared memory's: "
                f"rename the parameter or the region"
            )
        defines = {**made["defines"], **layout.macros}
        steps["binary"] = {**made, "defines": defines, "smem_bytes": layout.bytes}
    return steps


def binary_key(case: Case, config: Config, aligned: bool) -> Hashable:
    """Returns all inputs of the compiler and of a launch, for each of `contract.variants`."""
    made = variants(case, config, aligned).values()
    return case.kernel.name, *(
        (each["function"], each.get("overlaps_kernel_before", False), *each["defines"].items())
        for each in made
    )


def _built(kernel: Kernel, variant: dict[str, Any], arch: Arch) -> Binary:
    """Returns a `variant` from the cache, or compiles it."""
    sources, name = _sources(kernel), f"{kernel.name}.cu"
    function, chip = variant["function"], gpu(arch).compiler_target
    target = f"--gpu-architecture=sm_{chip}{'a' if chip in _OF_ONE_CHIP else ''}"
    defines = (f"-D{macro}={value}" for macro, value in variant["defines"].items())
    options = (target, *_OPTIONS, *defines)
    key = cubin_cache.key(nvrtc.installed().version, name, sources, function, options)
    cubin = cubin_cache.load(key)
    if cubin is None:
        cubin = nvrtc.compile(name, sources, function, options)
        cubin_cache.save(key, cubin)
    overlaps = variant.get("overlaps_kernel_before", False)
    return Binary(cubin, function, variant["threads"], variant["smem_bytes"], overlaps)


def _sources(kernel: Kernel) -> dict[str, str]:
    """Returns the text of the kernel's CUDA C++ files, by their path from `kernels/`."""
    folder = kernel.source.parent
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in kernel.sources
        if path.suffix in _SOURCES
    }


def stored(binary: Binary) -> tuple[bytes, dict[str, Any]]:
    """Returns the cubin of a binary and plain data, from which `restored` makes it again."""
    data = {
        "function": binary.function,
        "threads": binary.threads,
        "smem_bytes": binary.smem_bytes,
        "overlaps_kernel_before": binary.overlaps_kernel_before,
        "made_by": f"NVRTC {nvrtc.installed().version}",
    }
    return binary.cubin.image, data


def restored(image: bytes, data: dict[str, Any]) -> Binary:
    """Returns the binary of which `stored` returned the parts."""
    return Binary(Cubin(image, Resources()), **data)


def prepare(spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor]) -> Launch:
    """Prepares a launch on `tensors` (see the kernel's `arguments`), or tensors of their layout.

    Loads the binary, apart from the caller's stream and graph capture. Raises CompileError if the
    device lacks resources for it, or its driver is too old.
    """
    # Imported late: it imports PyTorch, which processes that only compile do without.
    from tunefa.compile.launch.host_side import prepared

    return prepared(spec, compiled, tensors, _launch)


def _launch(binary: Binary, host_side: Any, tensors: Sequence[Tensor]) -> Launch:
    """Prepares a launch of one binary with the arguments that its host side makes."""
    from tunefa.compile.launch import cuda_abi, driver
    from tunefa.compile.launch.prepared import Entry, PreparedLaunch

    grid, arguments = host_side(tensors)
    device, libcuda = tensors[0].get_device(), driver.load()
    function = _loaded(libcuda, device, binary)
    parameters, tables = cuda_abi.parameters(arguments, tensors)
    cuda_abi.check_sizes(parameters, _sizes(libcuda, function, len(parameters)))
    sizes = grid, binary.threads, binary.smem_bytes
    entry = Entry(device, function, *sizes, binary, binary.overlaps_kernel_before)
    return PreparedLaunch(libcuda, entry, len(tensors), parameters, tables)


@functools.cache  # modules are never unloaded: a launch or a graph may use them
def _loaded(driver: Driver, device: int, binary: Binary) -> int:
    """Returns the binary's kernel, loaded in the current context, which is that of `device`."""
    from tunefa.compile.launch import generations
    from tunefa.compile.launch.driver import DriverError

    try:
        return driver.load_function(binary.cubin.image, binary.function, binary.smem_bytes)
    except DriverError as error:
        made_by = binary.made_by or f"NVRTC {nvrtc.installed().version}"
        raise CompileError(generations.refusal(error, made_by)) from error


@functools.cache  # each new length asks for them
def _sizes(driver: Driver, function: int, most: int) -> list[int] | None:
    return driver.parameter_sizes(function, most)


def why_no_interpreter() -> str:
    """Returns why a result cannot be checked without a device."""
    return "CUDA C++ has no interpreter, and only a device can check what it computes"


def why_no_compiler(arch: Arch) -> str | None:
    """Returns why it cannot compile for `arch`, and what to install; None if it can."""
    try:
        found = nvrtc.installed()
    except TunefaError as error:
        return str(error)
    chip = gpu(arch).compiler_target
    if chip not in found.targets:
        return (
            f"NVRTC {found.version} ({found.path}) does not compile for sm_{chip}: "
            f"pip install --upgrade nvidia-cuda-nvrtc"
        )
    return None


def versions() -> dict[str, str]:
    """Returns the version of `compiler`: NVRTC, which includes ptxas."""
    return {"compiler": f"nvrtc {nvrtc.installed().version}"}


def quick_versions() -> dict[str, str | None]:
    """Returns what `versions` does, in 0.1 s; None if NVRTC is not installed."""
    try:
        return {**versions()}
    except TunefaError:
        return {"compiler": None}
