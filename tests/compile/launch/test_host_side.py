"""tunefa/compile/launch/host_side.py: one launch or several, and what each is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fake_cuda import FakeCuda
from tunefa.compile.contract import Compiled, CompileError, LaunchSpec
from tunefa.compile.launch import driver, host_side
from tunefa.compile.launch.arguments import Pointer
from tunefa.compile.launch.driver import SeenDevice
from tunefa.compile.launch.prepared import Entry, PreparedLaunch
from tunefa.compile.launch.steps import Steps
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

ENTRY = Entry(device=0, function=1, grid=(1, 1, 1), threads=32, smem_bytes=0)


class HostSide:
    """A kernel's file: what each of its functions was called with."""

    SCRATCH_ALONE = False

    def __init__(self) -> None:
        self.sms: list[int] = []

    def arguments(self, tensors: Any, spec: LaunchSpec) -> Any:
        self.sms.append(spec.sms)
        return (1, 1, 1), list(tensors)

    preprocess_arguments = postprocess_arguments = arguments

    def scratch(self, tensors: Any, spec: LaunchSpec) -> Any:
        return [((4, 2), torch.int32)]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> HostSide:
    """Tensors on the CPU pass for those of a device with 99 SMs."""
    seen = SeenDevice("a device", (9, 0), 99, 2**30)
    monkeypatch.setattr(driver, "device", lambda index: seen)
    monkeypatch.setattr(host_side, "apart", lambda device, work: work())
    return HostSide()


def prepared(module: HostSide, *others: Any, plain: bool = True) -> tuple[Any, list[Any]]:
    """The launch of a binary, and (binary, tensors) of each that was started."""
    started: list[Any] = []

    def start(binary: Any, arguments: Any, tensors: Any) -> Any:
        started.append((binary, list(tensors)))
        arguments(tensors)
        cuda = FakeCuda([8])
        made = PreparedLaunch(cuda.driver, ENTRY, len(tensors), [Pointer(0)])
        return made if plain else (lambda *tensors: None)

    kernel: Any = SimpleNamespace(name="k", module=module)
    case = Case(kernel, Workload.parse("q16_d64"), Target.named("h200"))
    compiled = Compiled("main", Resources, 0.0, *others)
    one = torch.zeros(2, 3)
    tensors = [one, one, torch.zeros(1)]
    return host_side.prepared(LaunchSpec(case, {}, 0.5), compiled, tensors, start), started


def test_one_binary_is_one_launch_on_the_call_s_tensors(module: HostSide) -> None:
    launch, ((binary, tensors),) = prepared(module)
    assert isinstance(launch, PreparedLaunch) and binary == "main"
    assert module.sms == [99], "of the device, not of the case"
    assert tensors[0] is not tensors[1], "one tensor passed twice is two arguments"
    assert tensors[0].data_ptr() == tensors[1].data_ptr()


def test_what_runs_first_shares_scratch_memory_with_the_kernel(module: HostSide) -> None:
    launch, started = prepared(module, "first")
    assert isinstance(launch, Steps)
    assert [binary for binary, _ in started] == ["first", "main"]
    (_, before), (_, after) = started
    assert before[-1] is after[-1] and before[-1].shape == (4, 2)
    assert before[-1].dtype == torch.int32 and len(before) == 4


def test_what_runs_last_shares_scratch_memory_too(module: HostSide) -> None:
    _, started = prepared(module, "first", "last")
    assert [binary for binary, _ in started] == ["first", "main", "last"]
    (_, before), _, (_, after) = started
    assert before[-1] is after[-1]


def test_one_kernel_alone_has_scratch_memory_if_it_says_so(module: HostSide) -> None:
    module.SCRATCH_ALONE = True
    launch, ((binary, tensors),) = prepared(module)
    assert isinstance(launch, Steps) and len(launch.launches) == 1 and binary == "main"
    assert tensors[-1].shape == (4, 2) and launch.scratch == [((4, 2), torch.int32)]


def test_steps_are_for_launches_that_the_driver_makes(module: HostSide) -> None:
    with pytest.raises(CompileError, match="needs its language's launcher"):
        prepared(module, "first", plain=False)
