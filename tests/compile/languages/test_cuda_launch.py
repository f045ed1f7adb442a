"""CUDA C++ and tunefa/compile/launch/cuda_abi.py: what reaches the driver, and errors before."""

from __future__ import annotations

import ctypes
import re
import struct
from typing import Any

import pytest
import torch

from tests.support.fake_cuda import FakeCuda
from tests.support.own_kernels import COPY_IN_CUDA_HOST, FIRST_IN_CUDA, OwnKernels
from tunefa.compile.contract import CompileError, LaunchSpec
from tunefa.compile.languages import cuda as language
from tunefa.compile.launch import driver, host_side
from tunefa.compile.launch.driver import SeenDevice
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("h4_q100_d64")


@pytest.fixture
def kernel(own_kernels: OwnKernels, request: pytest.FixtureRequest) -> Kernel:
    """One of this test's own."""
    return own_kernels.add_cuda("launched_" + re.sub(r"\W", "_", request.node.name))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A driver that loads anything, and tensors on the CPU that pass for its own."""
    fake = FakeCuda([8, 8, 4, 8, 8])
    monkeypatch.setattr(driver, "load", lambda: fake.driver)
    seen = SeenDevice("NVIDIA H200", (9, 0), 132, 150 * 2**30)
    monkeypatch.setattr(driver, "device", lambda index: seen)
    monkeypatch.setattr(host_side, "apart", lambda device, work: work())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    return fake


def five() -> tuple[Any, ...]:
    return (*(torch.zeros(1, 4, 100, 64) for _ in range(4)), torch.zeros(1, 4, 100))


def launch(kernel: Kernel, made: Any, width: int = 1) -> Any:
    case, config = Case(kernel, WORKLOAD, Target.named("sm90")), {"WIDTH": width}
    return language.prepare(LaunchSpec(case, config, 0.5), language.compile(case, config), made)


def test_a_launch_has_the_host_side_s_arguments(kernel: Kernel, cuda: FakeCuda) -> None:
    start = launch(kernel, five())
    assert start.device_bytes == 200 * 4
    others = five()
    start(*others)
    (started,) = cuda.started
    assert (started.grid, started.block, started.smem_bytes) == ((4, 1, 1), (128, 1, 1), 65536)
    q, out, rows, stride, table = started.parameters
    assert (q, out) == tuple(struct.pack("Q", others[i].data_ptr()) for i in (0, 3))
    assert (rows, stride) == (struct.pack("i", 100), struct.pack("q", 128))
    assert ctypes.c_float.from_address(struct.unpack("Q", table)[0]).value == 0.5
    assert cuda.loaded == [("copy", 65536)]


def test_a_binary_is_loaded_once_a_process(kernel: Kernel, cuda: FakeCuda) -> None:
    for _ in range(3):
        launch(kernel, five())
    launch(kernel, five(), width=2)
    assert len(cuda.loaded) == 2


def test_two_kernels_share_scratch_memory(own_kernels: OwnKernels, cuda: FakeCuda) -> None:
    kernel = own_kernels.add_cuda("cuda_two", py=COPY_IN_CUDA_HOST + FIRST_IN_CUDA)
    launch(kernel, five())(*five())
    assert [started.block[0] for started in cuda.started] == [64, 128]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (209, r"the driver does not load what NVRTC [\d.]+ made: update the driver, or compile"),
        (2, r"the driver refuses what NVRTC [\d.]+ made: CUDA error 2 in cuModuleLoadData"),
    ],
)
def test_a_driver_older_than_the_cubin(
    kernel: Kernel, cuda: FakeCuda, status: int, words: str
) -> None:
    cuda.load_status = status
    with pytest.raises(CompileError, match=words):
        launch(kernel, five())


def test_arguments_that_are_not_the_kernel_s_parameters(kernel: Kernel, cuda: FakeCuda) -> None:
    cuda.sizes = [8, 8, 4, 4, 8]
    with pytest.raises(CompileError, match=r"parameters have \[8, 8, 4, 4, 8\] bytes, its arg"):
        launch(kernel, five())
    language._sizes.cache_clear()  # as in another process
    del cuda.library.cuFuncGetParamInfo  # a driver before 12.4
    launch(kernel, five())
