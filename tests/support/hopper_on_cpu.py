"""A runtime whose H200 is the CPU: host sides run, and the driver remembers what it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.compiler.compiler import CompiledKernel

from tests.support import unfinished_triton
from tests.support.fake_cuda import FakeCuda, Started
from tunefa.compile.contract import Compiled, variants
from tunefa.compile.languages import cuda
from tunefa.compile.launch import driver, host_side
from tunefa.compile.launch.driver import SeenDevice
from tunefa.compile.nvrtc import Cubin
from tunefa.runtime import kernel_plan, tables
from tunefa.runtime.chip import Chip
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.process import Runtime
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources

SEEN = SeenDevice("NVIDIA H200", (9, 0), 132, 141 * 2**30)


def _loaded(binary: Any) -> None:
    binary.module, binary.function = 1, 0xF00
    binary._run = None


def _here(device: int, work: Any) -> Any:
    return work()


def hopper(monkeypatch: Any, *names: str, has_code: bool = False) -> tuple[Runtime, FakeCuda]:
    """A runtime with the kernels of these names. As only host sides run, CUDA C++ is not compiled,
    and kernels in Triton and Gluon have no machine code unless `has_code`."""
    fake = FakeCuda([])
    monkeypatch.setattr(driver, "load", lambda: fake.driver)
    monkeypatch.setattr(driver, "device", lambda index: SEEN)
    for module in (host_side, kernel_plan, tables):
        monkeypatch.setattr(module, "apart", _here)
    monkeypatch.setattr(kernel_plan, "_unread", lambda device, elements: torch.empty(elements))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(cuda, "compile", _uncompiled)
    if not has_code:
        unfinished_triton.install(monkeypatch)
    monkeypatch.setattr(cuda, "_loaded", lambda driver, device, binary: 0xF00)
    monkeypatch.setattr(cuda, "_sizes", lambda driver, function, most: None)
    monkeypatch.setattr(CompiledKernel, "_init_handles", _loaded)
    made = Runtime()
    made.planner.devices[torch.device("cpu")] = (Chip.of_seen(SEEN), Compiler())
    made.planner.kernels = tuple(map(kernels.load, names))
    return made, fake


def seen(fake: FakeCuda, sizes: list[int], start: Callable[[], None]) -> Started:
    """The launch that the driver got while `start` ran, with parameters of these sizes."""
    fake.sizes = sizes
    fake.started.clear()
    start()
    (found,) = fake.started
    return found


def _uncompiled(case: Case, config: Config, aligned: bool = True) -> Compiled:
    made = {
        step: cuda.Binary(
            Cubin(b"", Resources()),
            each["function"],
            each["threads"],
            each.get("smem_bytes", 4096),
            each.get("overlaps_kernel_before", False),
        )
        for step, each in variants(case, config, aligned).items()
    }
    return Compiled(inspect=Resources, seconds=0.0, **made)
