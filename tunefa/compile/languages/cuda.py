"""CUDA C++: compiled by NVRTC for any NVIDIA target, with no driver, toolkit or host compiler.

A kernel is `kernels/<name>.py` and beside it `kernels/<name>.cu`: CUDA C++ that stands for itself,
in which parameters are macros with defaults (`#ifndef BLOCK_N`, `#define BLOCK_N 64`, `#endif`),
and kernels are `extern "C"`. It may include others of tunefa's files by their path from `kernels/`
(`#include "cuda/mma.cuh"`), and none of the CUDA toolkit's, which NVRTC's wheel has not got.

The `.py` defines

* `variant(workload, config, aligned) -> dict`: `function`, its name in the .cu; `defines`, a value
  for each macro; `threads` of one block; `smem_bytes` of dynamic shared memory, but where its space
  lays that out (`shared_memory`): then this language adds the size, and macros of each region
  (`Q_OFFSET`, `Q_BYTES` of a slot, `Q_SLOTS`), for which the .cu has no defaults;
* `arguments(tensors, spec) -> (grid, arguments)`, in the order of its parameters; `spec` is a
  `tunefa.compile.contract.LaunchSpec` (workload, config, scale, softcap, sms). One is
  a tensor (a pointer: one of `tensors`, whose address may change from call to call, or a table that
  the host side makes, once a launch), `(tensor, axis)` (an int: how long that axis of one of
  `tensors` is then), a number or structure of ctypes (`c_int(7)`, passed by value), or
  `{"map": tensor, "box": sizes, "swizzle_bytes": 128}` (a CUtensorMap of one of `tensors`, for a
  `const __grid_constant__` parameter; `shape` and `strides`, where it is viewed as another);
* `is_aligned(tensors) -> bool`: whether the aligned variant may read them;
* optionally `specialize(workload, config, sms) -> dict`: what a config that is best for another
  workload should have for this one, of parameters that only the host side reads.

One that needs another kernel of its .cu to run first in each call also defines `preprocess`,
`scratch` and `preprocess_arguments`, as in Triton (see there), with a variant of this language.

Cubins are kept in tunefa's cache folder, by everything that the compiler saw.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunefa.compile import contract, cubin_cache, nvrtc
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

# The "a" is for the instructions of just that chip: WGMMA, setmaxnreg, tcgen05.
_OF_ONE_CHIP = (90, 100)
# NVRTC 13.0 takes generic lambdas inside of device functions for functions of the host.
_OPTIONS = ("-std=c++17", "--ptxas-options=-v", "-default-device")
_SOURCES = (".cu", ".cuh")


@dataclass(frozen=True)
class Binary:
    """A kernel in its cubin, and how it is started."""

    cubin: Cubin
    function: str
    threads: int
    smem_bytes: int
    """Dynamic shared memory."""

    @property
    def resources(self) -> Resources:
        """What one block needs."""
        own = self.cubin.resources
        return replace(own, smem_bytes=(own.smem_bytes or 0) + self.smem_bytes)


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Returns the config as a cubin for the case's arch, with the resources that it got.

    Raises CompileError with file and line of what the compiler refuses, and TunefaError when there
    is no compiler for that arch.
    """
    if why := why_no_compiler(case.arch):
        raise TunefaError(why)
    start = time.perf_counter()
    variant, *first = (
        _built(case.kernel, each, case.arch) for each in variants(case, config, aligned)
    )
    seconds = time.perf_counter() - start
    return Compiled(variant, lambda: variant.resources, seconds, first[0] if first else None)


def variants(case: Case, config: Config, aligned: bool) -> list[dict[str, Any]]:
    """Returns what is compiled for a config: the kernel, with its layout of shared memory if its
    space has one, and what runs first, if anything does."""
    made, *first = contract.variants(case, config, aligned)
    layout = case.shared_memory(config)
    if layout is not None:
        if taken := sorted(made["defines"].keys() & layout.macros):
            raise TunefaError(
                f"{case.kernel.name} has a macro {taken[0]}, which is one of its shared memory's: "
                f"rename the parameter or the region"
            )
        defines = {**made["defines"], **layout.macros}
        made = {**made, "defines": defines, "smem_bytes": layout.bytes}
    return [made, *first]


def binary_key(case: Case, config: Config, aligned: bool) -> Hashable:
    """Everything of a `variant`, and of what runs first, that the compiler sees."""
    made = variants(case, config, aligned)
    return case.kernel.name, *((each["function"], *each["defines"].items()) for each in made)


def _built(kernel: Kernel, variant: dict[str, Any], arch: Arch) -> Binary:
    """A `variant` out of the cache, or compiled."""
    sources, name = _sources(kernel), f"{kernel.name}.cu"
    function, chip = variant["function"], gpu(arch).target
    target = f"--gpu-architecture=sm_{chip}{'a' if chip in _OF_ONE_CHIP else ''}"
    defines = (f"-D{macro}={value}" for macro, value in variant["defines"].items())
    options = (target, *_OPTIONS, *defines)
    key = cubin_cache.key(nvrtc.installed().version, name, sources, function, options)
    cubin = cubin_cache.load(key)
    if cubin is None:
        cubin = nvrtc.compile(name, sources, function, options)
        cubin_cache.save(key, cubin)
    return Binary(cubin, function, variant["threads"], variant["smem_bytes"])


def _sources(kernel: Kernel) -> dict[str, str]:
    """The kernel's files in CUDA C++, by their path from `kernels/`."""
    folder = kernel.source.parent
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in kernel.sources
        if path.suffix in _SOURCES
    }


def prepare(spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor]) -> Launch:
    """A launch on `tensors` (see the kernel's `arguments`) or others like them.

    Loads the binary, past the caller's stream and capture. Raises CompileError when the device has
    too little of something for it, or its driver is too old.
    """
    # It imports PyTorch, which takes a process that only compiles a second or two.
    from tunefa.compile.launch.host_side import prepared

    return prepared(spec, compiled, tensors, _launch)


def _launch(binary: Binary, host_side: Any, tensors: Sequence[Tensor]) -> Launch:
    """A launch of one binary with what its host side makes of tensors like these."""
    from tunefa.compile.launch import cuda_abi, driver
    from tunefa.compile.launch.prepared import Entry, PreparedLaunch

    grid, arguments = host_side(tensors)
    device, libcuda = tensors[0].get_device(), driver.load()
    function = _loaded(libcuda, device, binary)
    parameters, tables = cuda_abi.parameters(arguments, tensors)
    cuda_abi.check_sizes(parameters, libcuda.parameter_sizes(function, len(parameters)))
    entry = Entry(device, function, grid, binary.threads, binary.smem_bytes)
    return PreparedLaunch(libcuda, entry, len(tensors), parameters, tables, binary)


@functools.cache  # a module stays loaded: a launch or a graph somewhere may be using it
def _loaded(driver: Driver, device: int, binary: Binary) -> int:
    """The binary's kernel in the current context, which is that of `device`."""
    from tunefa.compile.launch.driver import DriverError

    try:
        return driver.load_function(binary.cubin.image, binary.function, binary.smem_bytes)
    except DriverError as error:
        made = f"NVRTC {nvrtc.installed().version} made"
        if error.is_image_too_new:
            raise CompileError(
                f"the driver does not load what {made}: update the driver, or install an "
                f"nvidia-cuda-nvrtc no newer than it ({error})"
            ) from error
        raise CompileError(f"the driver does not take what {made}: {error}") from error


def why_no_interpreter() -> str:
    """Why a result cannot be checked without the device."""
    return "CUDA C++ has no interpreter, and only a device can check what it computes"


def why_no_compiler(arch: Arch) -> str | None:
    """Why it cannot compile for `arch` here, and what to install; None if it can."""
    try:
        found = nvrtc.installed()
    except TunefaError as error:
        return str(error)
    chip = gpu(arch).target
    if chip not in found.targets:
        return (
            f"NVRTC {found.version} ({found.path}) compiles for no sm_{chip}: "
            f"pip install --upgrade nvidia-cuda-nvrtc"
        )
    return None


def versions() -> dict[str, str]:
    """`compiler`, the NVRTC with the ptxas inside it."""
    return {"compiler": f"nvrtc {nvrtc.installed().version}"}
