"""Kernels in CUDA C++ on the CPU: compiled by the host's compiler, with fibers for threads.

The kernels' own sources run: `inline_ptx` turns each PTX instruction into a call of a function of
`ptx.h`. tunefa's own launches start them: each compiled kernel brings the functions of the CUDA
driver that a launch calls (`launch.h`). `machine.h` says how the simulated GPU behaves.
"""

from __future__ import annotations

import ctypes
import enum
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from tests.support.cuda_on_cpu.inline_ptx import translated
from tests.support.launch_specs import spec_of
from tunefa.compile.contract import LaunchSpec
from tunefa.compile.languages import cuda
from tunefa.compile.launch import cuda_abi
from tunefa.compile.launch.driver import Driver
from tunefa.compile.launch.host_side import Arguments
from tunefa.compile.launch.prepared import Entry, PreparedLaunch
from tunefa.compile.launch.steps import new_scratch
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

FOLDER = Path(__file__).resolve().parent
COMPILER = shutil.which("g++")
SHARED = "TUNEFA_TESTS_CUDA_ON_CPU"
"""The environment variable that names a folder for the processes of one session."""
# This machine has instructions that widen fp16 and add eight numbers; none is fused unless asked.
_CODE = (
    *("-std=c++17", "-march=native", "-ffp-contract=off", "-fPIC", "-w", "-iquote", str(FOLDER)),
    "-fno-gnu-unique",  # else programs share a function's static variables, of different sizes
)
# A program runs for less time than its compilation takes. Nothing is thrown through a kernel.
_OF_PROGRAMS = (*_CODE, "-Og", "-fno-exceptions", "-fno-asynchronous-unwind-tables")
# The machine brings the standard libraries, used or not: programs need not be linked with them.
_OF_MACHINE = (*_CODE, "-O1", "-Wl,--no-as-needed")
_LINKED = ("-shared", "-Wl,-Bsymbolic")
_SHARED_MEMORY = re.compile(r"extern __shared__ [^;]*?(\w+)\[\];")
_CLUSTER = re.compile(r"__cluster_dims__\((\d+), 1, 1\)")
_STREAMS = SimpleNamespace(
    _cuda_getCurrentRawStream=lambda device: 0, _cuda_isCurrentStreamCapturing=lambda: False
)


class Mode(enum.IntFlag):
    """The things that are late, of those that may be early or late; `machine.h` has the same."""

    LATE_LOADS = 1
    LAST_WARP_FIRST = 2
    LATE_READS = 4
    LAST_LOAD_FIRST = 8
    LANES_APART = 16
    STOPS = 32


MODES = tuple(map(Mode, range(Mode.STOPS)))
"""All modes of CTAs that do not stop: only several resident ones need to."""


class Program:
    """One kernel, compiled for the CPU."""

    def __init__(self, source: Path, variant: dict[str, Any], folder: Path, change: Change) -> None:
        text = change(_preprocessed(source, variant["defines"]))
        clusters = {int(size) for size in _CLUSTER.findall(text)} or {1}
        (cluster,) = clusters
        text = _SHARED_MEMORY.sub(r"auto \1 = dynamic_shared_memory();", translated(text))
        text += f"\n#define KERNEL {variant['function']}\n"
        text += f'#define CLUSTER_CTAS {cluster}\n#include "launch.h"\n'
        program = folder / f"{variant['function']}.cc"
        program.write_text(text)
        self.library = ctypes.CDLL(str(_library(program)))
        self.threads, self.smem_bytes = variant["threads"], variant["smem_bytes"]

    def launch(self, host_side: Arguments, tensors: Sequence[Tensor]) -> None:
        """Runs the kernel as tunefa launches it on a device. Raises DriverError where it fails."""
        grid, arguments = host_side(tensors)
        # The launch needs no list of tables: these live as long as `arguments`.
        parameters, _ = cuda_abi.parameters(arguments, tensors)
        driver = Driver(self.library, _STREAMS)
        cuda_abi.check_sizes(parameters, driver.parameter_sizes(0, len(parameters)))
        entry = Entry(0, 0, grid, self.threads, self.smem_bytes)
        PreparedLaunch(driver, entry, len(tensors), parameters)(*tensors)


Change = Callable[[str], str]


def _unchanged(source: str) -> str:
    return source


@dataclass(frozen=True)
class OnCpu:
    """One config of a kernel, compiled for the CPU, and what runs before and after it, if any."""

    kernel: Kernel
    config: Config
    program: Program
    preprocess: Program | None = None
    postprocess: Program | None = None

    resident: int = 1
    """The number of clusters that run at the same time."""

    def __call__(
        self, made: Sequence[Tensor], workload: Workload, mode: int = 0, sms: int = 132
    ) -> None:
        """Runs it on CPU tensors, as on a device with so many SMs."""
        scale = workload.head_dim**-0.5
        spec = spec_of(self.kernel, workload, self.config, scale, sms=sms)
        tensors = [tensor.detach() for tensor in made]
        ranges = [edge for tensor in tensors[:3] for edge in _edges(tensor)]
        for program in filter(None, (self.program, self.preprocess, self.postprocess)):
            program.library.set_mode(int(mode))
            program.library.set_resident(self.resident)
            program.library.set_readable(3, (ctypes.c_void_p * len(ranges))(*ranges))
        self._launch(spec, tensors)

    def _launch(self, spec: LaunchSpec, tensors: list[Tensor]) -> None:
        if spec.has_scratch(self.preprocess is None and self.postprocess is None):
            tensors += new_scratch(spec.scratch(tensors), tensors[0])
        if self.preprocess is not None:
            self.preprocess.launch(spec.preprocess_arguments, tensors)
        self.program.launch(spec.arguments, tensors)
        if self.postprocess is not None:
            self.postprocess.launch(spec.postprocess_arguments, tensors)


def compiled(
    kernel: Kernel,
    workload: Workload,
    config: Config,
    folder: Path,
    change: Change = _unchanged,
    changed: str = "binary",
) -> OnCpu:
    """Compiles the config for workloads of that kind, in an empty folder.

    `change` edits the preprocessed source of the kernel `changed`: "preprocess", "binary", which is
    the main one, or "postprocess".
    """
    source = kernel.source.with_suffix(".cu")
    case = spec_of(kernel, workload, config).case
    programs = {
        step: Program(source, each, folder, change if step == changed else _unchanged)
        for step, each in cuda.variants(case, config, aligned=True).items()
    }
    before, after = programs.get("preprocess"), programs.get("postprocess")
    return OnCpu(kernel, config, programs["binary"], before, after)


def _preprocessed(source: Path, defines: dict[str, Any]) -> str:
    options = [f"-D{name}={value}" for name, value in defines.items()]
    return _run("-E", "-x", "c++", "-std=c++17", *options, "-iquote", source.parent, source)


def _library(program: Path) -> Path:
    """Compiles a program, once a session: many configs and files of tests have equal ones."""
    header, machine = _machine()
    content = hashlib.sha256(program.read_bytes()).hexdigest()
    library = machine.with_name(f"{content}.so")
    if not library.exists():
        made = machine.with_name(f"{content}-{os.getpid()}.so")
        options = (*_OF_PROGRAMS, *_LINKED, "-nostdlib", "-include", header)
        _run(*options, program, machine, "-o", made)
        made.replace(library)
    return library


@functools.cache
def _machine() -> tuple[Path, Path]:
    """Compiles what all programs share, once a session: their header, and the machine's library."""
    folder = Path(os.environ.get(SHARED) or _folder().name)
    sources = sorted(FOLDER.glob("*.cc"))
    header = folder / "cuda.h"  # of which the compiler reads cuda.h.gch
    library = folder / "machine.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            made = folder / "incomplete.so"
            _run(*_OF_PROGRAMS, "-x", "c++-header", FOLDER / header.name, "-o", f"{header}.gch")
            _run(*_OF_MACHINE, *_LINKED, *sources, "-o", made)
            made.replace(library)
    return header, library


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="tunefa-cuda-on-cpu-")


def _run(*arguments: object) -> str:
    command = [str(COMPILER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


def _edges(tensor: Tensor) -> tuple[int, int]:
    """The first address of a tensor, and that behind its last element."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()
