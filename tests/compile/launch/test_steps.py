"""tunefa/compile/launch/steps.py: launches one after the other, and the memory that they share."""

from __future__ import annotations

import gc
import struct
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fake_cuda import FakeCuda
from tunefa.compile.launch import steps as module
from tunefa.compile.launch.arguments import Pointer, Value
from tunefa.compile.launch.prepared import Entry, PreparedLaunch
from tunefa.compile.launch.steps import MOST_BYTES, MOST_STREAMS, Layout, Steps

ENTRY = Entry(device=0, function=0xF00, grid=(5, 2, 3), threads=128, smem_bytes=4096)
SCRATCH = [((4, 16), torch.bfloat16), ((3,), torch.int32)]


@pytest.fixture(autouse=True)
def _no_workspaces() -> Any:
    module._workspace.cache_clear()
    yield
    module._workspace.cache_clear()


def made(scratch: Any = SCRATCH) -> tuple[FakeCuda, Steps]:
    """Two launches: each gets one of the five tensors, and both parts of the memory."""
    cuda = FakeCuda([8, 8, 8])
    last = 4 + len(scratch)
    parts = [
        PreparedLaunch(cuda.driver, ENTRY, last + 1, [Pointer(x), Pointer(5), Pointer(last)])
        for x in (2, 4)
    ]
    return cuda, Steps(parts, scratch)


def five() -> tuple[Tensor, ...]:
    return tuple(torch.empty(16) for _ in range(5))


def word(tensor: Tensor) -> bytes:
    return struct.pack("Q", tensor.data_ptr())


def number(data: bytes) -> int:
    (found,) = struct.unpack("Q", data)
    return int(found)


def test_launches_share_memory_of_their_stream() -> None:
    cuda, steps = made()
    tensors = five()
    for stream in (1, 1, 2):
        cuda.stream = stream
        steps(*tensors)
    started = [each.parameters for each in cuda.started]
    assert [each[0] for each in started] == [word(tensors[2]), word(tensors[4])] * 3
    assert len({(each[1], each[2]) for each in started[:4]}) == 1, "equal for all calls"
    assert number(started[0][2]) - number(started[0][1]) == 256, "the first part has 128 bytes"
    assert started[4][1] != started[0][1], "another stream may run at the same time"
    assert started[4][1:] == started[5][1:]
    assert number(started[0][1]) not in (each.data_ptr() for each in tensors)
    assert steps.device_bytes == 0


def test_a_captured_call_has_memory_of_its_own() -> None:
    """A graph that is replayed on another stream must not share it."""
    cuda, steps = made()
    steps(*five())
    cuda.capturing = True
    steps(*five())
    usual, captured = cuda.started[0].parameters, cuda.started[2].parameters
    assert usual[1] != captured[1]
    assert cuda.started[2].parameters[1:] == cuda.started[3].parameters[1:]


def test_much_memory_is_not_kept() -> None:
    cuda, steps = made([((MOST_BYTES + 1,), torch.uint8)])
    steps(*five())
    assert module._workspace(-1, 0).size == 0 and len(cuda.started) == 2


def test_much_memory_is_held_until_all_are_started() -> None:
    """Another thread that uses the stream would get it, and start a kernel in between."""

    class Memory(torch.Tensor):
        pass

    like = torch.empty(1).as_subclass(Memory)
    space = module.workspace(MOST_BYTES + 1, 0, like)
    assert space.at_least(MOST_BYTES + 1, like) != 0 and space.size == MOST_BYTES + 1
    assert _memory_is_held(Memory) and module._workspace(-1, 0) is not space
    del space
    assert not _memory_is_held(Memory)


def _memory_is_held(kind: type[Tensor]) -> bool:
    return any(type(x) is kind and x.numel() > MOST_BYTES for x in gc.get_objects())


def test_it_grows_and_is_bounded() -> None:
    small, large = made()[1], made([((2**21 + 1,), torch.int32)])[1]
    tensors = five()
    small(*tensors)
    space = module._workspace(-1, 0)
    assert space.size == module.LEAST_BYTES
    large(*tensors)
    assert space.size == 2**24
    small(*tensors)
    assert space.size == 2**24 and module._workspace(-1, 0) is space
    for stream in range(3 * MOST_STREAMS):
        module._workspace(-1, stream)
    assert module._workspace.cache_info().currsize == MOST_STREAMS


def test_parts_begin_at_multiples_and_do_not_overlap() -> None:
    parts = [((3, 5), torch.float32), ((0,), torch.int32), ((129,), torch.bfloat16)]
    layout = Layout([*parts, ((1,), torch.uint8)])
    assert layout.offsets == (0, 256, 256, 768) and layout.bytes == 1024
    assert layout.at(4096) == [4096, 4352, 4352, 4864]


def test_no_thread_starts_a_kernel_between_those_of_another() -> None:
    cuda, steps = made()
    launch = cuda.driver.launch
    order: list[int] = []

    def slow(*given: Any) -> Any:
        order.append(threading.get_ident())
        time.sleep(0.001)
        return launch(*given)

    for each in steps.launches:
        each._start = slow

    def several() -> None:
        for _ in range(5):
            steps(*five())

    threads = [threading.Thread(target=several) for _ in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(order) == 30 and order[::2] == order[1::2]


def test_steps_are_the_same_if_all_are() -> None:
    cuda = FakeCuda([])
    first, second = (
        PreparedLaunch(cuda.driver, ENTRY, 5, [Pointer(0), Value(bytes(each))]) for each in (4, 8)
    )
    one = Steps([first, second], [((2, 3), torch.float32)])
    assert one.key == Steps([first, second], [((2, 3), torch.float32)]).key
    assert one.key != Steps([second, first], [((2, 3), torch.float32)]).key
    assert one.key != Steps([first, second], [((2, 4), torch.float32)]).key
    assert Steps([first, lambda *_: None], []).key is None  # type: ignore[list-item]
