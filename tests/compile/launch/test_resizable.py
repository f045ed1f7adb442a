"""tunefa/compile/launch/resizable.py: what reaches the driver for lengths that are new."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fake_cuda import FakeCuda
from tests.support.resizable_launch import start
from tunefa.compile.launch.arguments import Descriptor, Length, Parameter, Pointer, Value
from tunefa.compile.launch.prepared import Entry, PreparedLaunch
from tunefa.compile.launch.resizable import ResizableLaunch, Resizing, Sizes
from tunefa.compile.launch.tensor_map import TensorMap

MAP = TensorMap(
    dtype=9, element_bytes=2, shape=(2, 8, 100, 64), strides=(51200, 64, 512, 1),
    box=(1, 1, 64, 64), swizzle=3, fill_nan=False,
)  # fmt: skip
SIZES: Sizes = (*MAP.shape, *MAP.strides)
ENTRY = Entry(device=0, function=0xF00, grid=(5, 1, 1), threads=128, smem_bytes=4096)
FIRST = Resizing(5, (7, 8), (SIZES, SIZES, SIZES))
OTHER = Resizing(
    9, (70, 80), ((1, 8, 33, 64, 16896, 64, 512, 1), (1, 8, 9, 64, 51200, 64, 512, 1), SIZES)
)


def i32(number: int) -> Value:
    return Value(struct.pack("i", number))


def of_triton(tensor: int) -> list[Parameter]:
    """A descriptor, with its shape and strides behind it."""
    strides = [Value(struct.pack("q", step)) for step in MAP.strides]
    return [Descriptor(tensor, MAP), *map(i32, MAP.shape), *strides]


PLAIN: list[Parameter] = [
    Descriptor(0, MAP), Descriptor(1, MAP), Pointer(2), i32(7), i32(8), Value(struct.pack("f", 0.5))
]  # fmt: skip
IN_PANELS: list[Parameter] = [
    *(Descriptor(tensor, replace(MAP, box=(1, 1, 64, 32), by_panels=True)) for tensor in (0, 1)),
    *PLAIN[2:],
]
WITH_SHAPES: list[Parameter] = [
    *of_triton(0), *of_triton(1), Pointer(2), i32(7), i32(8), Value(struct.pack("f", 0.5))
]  # fmt: skip


def three() -> list[Tensor]:
    return [torch.empty(16) for _ in range(3)]


def addresses(tensors: list[Tensor]) -> list[int]:
    return [*map(Tensor.data_ptr, tensors)]


def resizable(
    parameters: list[Parameter], entry: Entry = ENTRY
) -> tuple[FakeCuda, PreparedLaunch, Any]:
    cuda = FakeCuda([each.size for each in parameters])
    launch = PreparedLaunch(cuda.driver, entry, 3, parameters)
    return cuda, launch, ResizableLaunch.of(launch, 3, FIRST)


@pytest.mark.parametrize(
    "parameters", [PLAIN, IN_PANELS, WITH_SHAPES], ids=["cuda", "panels", "triton"]
)
def test_the_driver_gets_what_a_launch_of_these_lengths_gives_it(parameters: Any) -> None:
    for entry in (ENTRY, replace(ENTRY, overlaps_kernel_before=True)):
        cuda, _, quick = resizable(parameters, entry)
        tensors = three()
        for resizing in (FIRST, OTHER, OTHER, FIRST):
            cuda.stream += 1
            start(quick, resizing, addresses(tensors))
            quick.bound(resizing)(*tensors)
            assert cuda.started[-2] == cuda.started[-1]
            assert cuda.started[-1].grid == (resizing.ctas, 1, 1)


def test_maps_of_other_lengths_and_tensors_do_not_mix() -> None:
    cuda, _, quick = resizable(PLAIN)
    sets = [three() for _ in range(3)]
    packed = [(each, quick.written(*each)) for each in (FIRST, OTHER)]
    for resizing, written in [*packed, *packed[::-1], *packed]:
        for tensors in sets:
            quick.start(0, written, (*addresses(tensors),))
            quick.bound(resizing)(*tensors)
            assert cuda.started[-2] == cuda.started[-1]


def test_maps_are_encoded_before_the_call_for_the_last_addresses() -> None:
    cuda, _, quick = resizable(PLAIN)
    tensors = three()
    start(quick, FIRST, addresses(tensors))
    assert (len(cuda.encoded), cuda.replaced) == (2, 2)
    written = quick.written(*OTHER)
    assert len(cuda.encoded) == 4
    (place, dtype, address, shape, strides, box, _, modes) = cuda.encoded[-1]
    assert (place, dtype, address) == (0, 9, tensors[1].data_ptr())
    assert (shape, strides) == ((64, 9, 8, 1), (1024, 128, 102400))
    assert (box, modes) == ((64, 64, 1, 1), (0, 3, 2, 0))
    quick.start(0, written, (*addresses(tensors),))
    quick.start(0, written, (*addresses([*tensors[:2], torch.empty(16)]),))
    assert cuda.replaced == 2
    quick.start(0, written, (*addresses([tensors[0], torch.empty(16), tensors[2]]),))
    assert (len(cuda.encoded), cuda.replaced) == (4, 3)


def test_threads_do_not_mix_lengths_and_tensors() -> None:
    cuda, _, quick = resizable(PLAIN)
    calls = [(each, three()) for each in (FIRST, OTHER) for _ in range(2)]
    for resizing, tensors in calls:
        quick.bound(resizing)(*tensors)
    allowed = [each.parameters for each in cuda.started]

    def run(resizing: Resizing, tensors: list[Tensor]) -> None:
        for _ in range(200):
            start(quick, resizing, addresses(tensors))

    threads = [threading.Thread(target=run, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cuda.started) == 804
    assert all(each.parameters in allowed for each in cuda.started)


def test_equal_descriptors_have_one_map() -> None:
    cuda, _, quick = resizable([Descriptor(0, MAP), *PLAIN])
    start(quick, FIRST, addresses(three()))
    assert len(cuda.encoded) == 2
    first, second, third = cuda.started[0].parameters[:3]
    assert first == second != third


def test_a_thread_without_a_context_gets_one() -> None:
    cuda, _, quick = resizable(PLAIN)
    cuda.contexts = False
    start(quick, FIRST, addresses(three()))
    assert cuda.bound == 1 and len(cuda.started) == 1


def test_errors_are_those_of_the_driver() -> None:
    cuda, _, quick = resizable(PLAIN)
    cuda.fails = True
    with pytest.raises(RuntimeError, match="cuTensorMapEncodeTiled"):
        start(quick, FIRST, addresses(three()))
    cuda.fails = False
    written = quick.written(*FIRST)
    cuda.fails = True
    with pytest.raises(RuntimeError, match="cuTensorMapReplaceAddress"):
        quick.start(0, written, (*addresses(three()),))
    cuda.fails = False
    start(quick, FIRST, addresses(three()))
    assert len(cuda.started) == 1


@pytest.mark.parametrize(
    ("parameters", "resizing"),
    [
        (PLAIN, FIRST._replace(ctas=6)),
        (PLAIN, FIRST._replace(numbers=(7, 9))),
        (PLAIN, FIRST._replace(numbers=(7, 8, 1, 1))),
        (PLAIN, FIRST._replace(sizes=OTHER.sizes)),
        ([*PLAIN, Length(0, 0)], FIRST),
        ([*PLAIN, Value(bytes(16))], FIRST),
        ([Descriptor(0, replace(MAP, shape=(1, *MAP.shape))), *PLAIN], FIRST),
    ],
)
def test_what_does_something_else_is_not_taken(parameters: Any, resizing: Resizing) -> None:
    cuda = FakeCuda([each.size for each in parameters])
    launch = PreparedLaunch(cuda.driver, ENTRY, 3, parameters)
    assert ResizableLaunch.of(launch, 3, resizing) is None
    assert ResizableLaunch.of(lambda: None, 3, resizing) is None


STRIDES, STRUCTURE = struct.Struct("2qi4x"), struct.Struct("3if4x")


def structures(sizes: Sizes, first: tuple[int, int, int]) -> list[Parameter]:
    """Strides and sizes as structures of C; the last field of the sizes stays as it is."""
    return [
        *(Descriptor(0, MAP), Pointer(2), Value(STRIDES.pack(*sizes[4:7]))),
        Value(STRUCTURE.pack(*first, 0.5)),
    ]


def test_numbers_may_be_fields_of_structures() -> None:
    parameters = structures(SIZES, (1, 2, 3))
    cuda = FakeCuda([each.size for each in parameters])
    launch = PreparedLaunch(cuda.driver, ENTRY, 3, parameters)
    form, tensors = "2qi4x3i", three()
    first = Resizing(5, (*SIZES[4:7], 1, 2, 3), (SIZES,))
    assert ResizableLaunch.of(launch, 3, first) is None, "structures need a format"
    quick = ResizableLaunch.of(launch, 3, first, form)
    assert quick is not None
    sizes = OTHER.sizes[0]
    for resizing in (Resizing(9, (*sizes[4:7], 7, 8, 9), (sizes,)), first):
        start(quick, resizing, addresses(tensors))
        bound = quick.bound(resizing)
        assert bound is not None
        bound(*tensors)
        assert cuda.started[-2] == cuda.started[-1]
        _, at, *fields = cuda.started[-1].parameters
        assert at == struct.pack("Q", tensors[2].data_ptr())
        expected = structures(resizing.sizes[0], resizing.numbers[3:])[2:]  # type: ignore[arg-type]
        assert fields == [each.data for each in expected if isinstance(each, Value)]
    wrong = first._replace(numbers=(*SIZES[4:7], 1, 2, 4))
    assert ResizableLaunch.of(launch, 3, wrong, form) is None
