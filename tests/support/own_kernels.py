"""Kernels that a test writes for itself, in place of those tunefa ships.

`tunefa.assets.root` says where kernels are, and replacing it is enough in this process. Processes
that are spawned import everything afresh, so a replaced function is not replaced there; and an
environment variable that moved the folders would be a door in the package for tests only. But
spawned processes are told by name which function to call: so the functions that
`tunefa.compile.pool` and `tunefa.measure.gate` send to theirs are replaced by `there`, which moves
`assets.root` in the process it runs in and then calls the one that was meant.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import hostile_kernel
from tests.support.sample_space import MODEL
from tests.support.tree import TREE
from tunefa import assets
from tunefa.compile import pool as compile_pool
from tunefa.measure import gate
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel

if TYPE_CHECKING:  # the compilers' processes import this module
    import pytest

ATTENTION = "attention_fwd_triton"
DEVICE_CODE = "triton.attention_forward"


class OwnKernels:
    """Folders `kernels`, `search_spaces` and `results` in place of tunefa's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name in assets.FOLDERS:
            (folder / name).mkdir(parents=True)
        for replaced in replacements(str(folder)):
            monkeypatch.setattr(*replaced)

    def add(self, name: str, source: str, space: str) -> Kernel:
        """A kernel of that name. `space` says `NAME` where the kernel's name belongs.

        Modules are remembered by name for the whole process: no two tests may share one.
        """
        (self.folder / "kernels" / f"{name}.py").write_text(source, encoding="utf-8")
        space_file = self.folder / "search_spaces" / f"{name}.yaml"
        space_file.write_text(space.replace("NAME", name), encoding="utf-8")
        return kernels.load(name)

    def add_cuda(self, name: str, **sources: str) -> Kernel:
        """A kernel of that name in CUDA C++: `py` and `cu` in place of those of COPY_IN_CUDA."""
        (self.folder / "kernels" / f"{name}.cu").write_text(
            sources.get("cu", COPY_IN_CUDA), encoding="utf-8"
        )
        return self.add(name, sources.get("py", COPY_IN_CUDA_HOST), COPY_IN_CUDA_SPACE)

    def add_attention(
        self,
        name: str,
        change: Callable[[str], str] = str,
        space: Callable[[str], str] = str,
        device: Callable[[str], str] = str,
    ) -> Kernel:
        """tunefa's own attention kernel under another name: the source of its host side, its space
        and its device code changed. None of its defaults was measured."""
        source = (TREE / "kernels" / f"{ATTENTION}.py").read_text(encoding="utf-8")
        own = source.replace(f"tunefa.kernels.{DEVICE_CODE}", f"tunefa.kernels.triton.{name}")
        code = TREE / "kernels" / f"{DEVICE_CODE.replace('.', '/')}.py"
        place = self.folder / "kernels" / "triton" / f"{name}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(device(code.read_text(encoding="utf-8")), encoding="utf-8")
        text = (TREE / "search_spaces" / f"{ATTENTION}.yaml").read_text(encoding="utf-8")
        text = text.replace(f"kernel: {ATTENTION}", "kernel: NAME")
        text = text.replace("    measured: NVIDIA H200\n", "")
        return self.add(name, change(own), space(text))

    def add_hostile(self, name: str, space: str) -> Kernel:
        """A kernel that does what its config says; `hostile_kernel.space` makes its space."""
        place = self.folder / "kernels" / "triton" / f"{name}_device.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(hostile_kernel.DEVICE, encoding="utf-8")
        return self.add(name, hostile_kernel.SOURCE.replace("NAME", name), space)

    def add_broken(self, name: str) -> None:
        """Adds a kernel whose space cannot be read."""
        self.add_attention(name)
        (self.folder / "search_spaces" / f"{name}.yaml").write_text("schema: 2\nrules: [")

    def copy_of_tunefa(self) -> None:
        """Adds everything that tunefa ships."""
        for name in assets.FOLDERS:
            shutil.copytree(TREE / name, self.folder / name, dirs_exist_ok=True)


def replacements(folder: str) -> Iterator[tuple[Any, str, Any]]:
    """(module, name, value) of what makes `folder` hold the data folders, in a process and in the
    workers that it starts."""
    yield assets, "root", partial(_root, folder)
    for module, name in ((compile_pool, "_compile_once"), (gate, "_interpret")):
        yield module, name, partial(there, folder, module.__name__, name)


def there(folder: str, module: str, name: str, *args: Any) -> Any:
    """Calls a function of a module in a process where `folder` holds the data folders."""
    assets.root = partial(_root, folder)
    return getattr(importlib.import_module(module), name)(*args)


def _root(folder: str, name: str) -> Path:
    return Path(folder, name)


FAULTY_SPACE = f"""\
schema: 2
kernel: NAME
op: fwd
language: triton
parameters:
  FAULT:
    values: [none, error, exit, segfault, hang, noise]
    doc: what becomes of the process that compiles it
defaults:
  - config: {{FAULT: none}}
{MODEL}"""

FAULTY_SOURCE = """
import os, signal, subprocess, sys
import triton
import triton.language as tl


@triton.jit
def copy(source, target, FAULT: tl.constexpr):
    tl.static_assert(FAULT != "error", "this config is told to fail")
    tl.store(target, tl.load(source))


def variant(workload, config, aligned=True):
    fault = config["FAULT"]
    if fault == "exit":
        os._exit(7)
    if fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":  # like a ptxas that does not end: a child of the process that compiles
        subprocess.run(["sleep", "600"])
    if fault == "noise":
        print("from Python")
        os.write(2, b"from MLIR\\n")
    return {
        "function": lambda: copy,
        "signature": {"source": "*fp32", "target": "*fp32", "FAULT": "constexpr"},
        "constants": {"FAULT": fault},
        "aligned": ["source", "target"],
        "options": {"num_warps": 1},
    }
"""
"""A copy of one number: it compiles at once, unless its config says how to fail."""

COPY_IN_CUDA_SPACE = f"""\
schema: 2
kernel: NAME
op: fwd
language: cuda
priority: 1
parameters:
  WIDTH:
    values: [1, 2, 200]
    doc: numbers a thread copies
defaults:
  - config: {{WIDTH: 1}}
{MODEL}"""

COPY_IN_CUDA = """
#ifndef WIDTH
#define WIDTH 1
#endif

extern "C" __global__ void __launch_bounds__(128, 4)
copy(const float *source, float *target, int rows, long long stride, const float *table) {
    extern __shared__ float staged[];
    __shared__ float own[32];
    float found[WIDTH];
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i) found[i] = source[i * stride + threadIdx.x] * table[i];
    own[threadIdx.x % 32] = found[0];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        #pragma unroll
        for (int j = 0; j < WIDTH; j += 50) found[i] += found[i] * found[j] + found[WIDTH - 1 - i];
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        if (i < rows) target[i * stride + threadIdx.x] = found[i] + own[i % 32] + staged[i];
}
"""
"""More numbers at once than a thread has registers, with a WIDTH of 200."""

COPY_IN_CUDA_HOST = """
import ctypes
import dataclasses


def variant(workload, config, aligned=True):
    return {
        "function": "copy",
        "defines": {"WIDTH": config["WIDTH"]},
        "threads": 128,
        "smem_bytes": 65536,
    }


def arguments(tensors, spec):
    import torch

    table = torch.full((200,), spec.scale)
    q, out = tensors[0], tensors[3]
    return (4, 1, 1), [q, out, (q, 2), ctypes.c_longlong(128), table]


def is_aligned(tensors):
    return True
"""

FIRST_IN_CUDA = """

def preprocess(workload, config):
    made = variant(workload, config)
    return {**made, "defines": {"WIDTH": 2}, "threads": 64} if workload.causal else None


def scratch(tensors, spec):
    import torch

    return [((16,), torch.int32)]


def preprocess_arguments(tensors, spec):
    return arguments(tensors, dataclasses.replace(spec, scale=1.0))
"""
"""Joined to the host side: what another kernel needs to run first."""
