"""Kernels in CUDA C++ on the CPU: compiled by the host's compiler, with fibers for threads.

Their own sources run, but for `cuda/ptx.cuh`, which the one in this folder replaces.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.support.launch_specs import spec_of
from tunefa.compile.languages import cuda
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

FOLDER = Path(__file__).resolve().parent
COMPILER = shutil.which("g++")
MODES = tuple(range(4))
"""Copies arrive early or late, the first warp goes ahead or the last."""


@dataclass(frozen=True)
class OnCpu:
    """One config of a kernel, compiled for the CPU."""

    kernel: Kernel
    config: Config
    threads: int
    library: Any

    def __call__(self, made: Sequence[Tensor], workload: Workload, mode: int = 0) -> None:
        """Runs it on CPU tensors. Ends the process where the kernel does what it must not."""
        spec = spec_of(self.kernel, workload, self.config, workload.head_dim**-0.5)
        grid, arguments = spec.arguments(made)
        values = [
            ctypes.c_void_p(each.data_ptr()) if isinstance(each, Tensor) else each
            for each in arguments
        ]
        addresses = [ctypes.addressof(each) for each in values]
        ranges = [edge for tensor in made[:3] for edge in _edges(tensor)]
        self.library.run(
            grid[0], self.threads, mode, (ctypes.c_void_p * len(addresses))(*addresses),
            (ctypes.c_void_p * len(ranges))(*ranges), len(ranges) // 2,
        )  # fmt: skip


def compiled(kernel: Kernel, workload: Workload, config: Config, folder: Path) -> OnCpu:
    """The config for workloads of that kind; `folder` is an empty one."""
    variant = cuda.variants(spec_of(kernel, workload, config).case, config, aligned=True)[0]
    for path in kernel.sources:
        copy = folder / path.relative_to(kernel.source.parent)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    shutil.copy(FOLDER / "ptx.cuh", folder / "cuda" / "ptx.cuh")
    program = folder / "program.cc"
    program.write_text(
        f'#include "{kernel.name}.cu"\n#define KERNEL {variant["function"]}\n#include "run.cuh"\n'
    )
    defines = [f"-D{name}={value}" for name, value in variant["defines"].items()]
    library = folder / "program.so"
    command = [COMPILER, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-iquote", FOLDER]
    command += ["-iquote", folder]
    subprocess.run([*map(str, command), *defines, str(program), "-o", str(library)], check=True)
    return OnCpu(kernel, config, variant["threads"], ctypes.CDLL(str(library)))


def _edges(tensor: Tensor) -> tuple[int, int]:
    """The first address of a tensor, and that behind its last element."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()
