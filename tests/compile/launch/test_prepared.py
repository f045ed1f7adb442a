"""Prepared launches: what reaches the driver, and what is kept."""

from __future__ import annotations

import gc
import struct
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fake_cuda import FakeCuda
from tunefa.compile.launch import prepared
from tunefa.compile.launch.arguments import Descriptor, Length, Parameter, Pointer, Value
from tunefa.compile.launch.prepared import MAX_MAPS, Entry, PreparedLaunch
from tunefa.compile.launch.tensor_map import TensorMap

ENTRY = Entry(device=0, function=0xF00, grid=(5, 2, 3), threads=128, smem_bytes=4096)
MAP = TensorMap(
    dtype=9, element_bytes=2, shape=(2, 8, 100, 64), strides=(51200, 64, 512, 1),
    box=(1, 1, 64, 64), swizzle=3, fill_nan=False,
)  # fmt: skip
PARAMETERS: list[Parameter] = [
    Pointer(0), Descriptor(1, MAP), Value(struct.pack("i", 7)), Value(struct.pack("f", 0.5)),
    Descriptor(2, MAP), Pointer(4), Pointer(3), Value(bytes(8)),
]  # fmt: skip


def made(
    parameters: list[Parameter] = PARAMETERS, binary: object = None, **options: Any
) -> tuple[FakeCuda, Any]:
    cuda, entry = FakeCuda([each.size for each in parameters]), replace(ENTRY, binary=binary)
    return cuda, PreparedLaunch(cuda.driver, entry, 5, parameters, **options)


def five() -> tuple[Tensor, ...]:
    return tuple(torch.empty(16) for _ in range(5))


def word(tensor: Tensor) -> bytes:
    return struct.pack("Q", tensor.data_ptr())


def test_the_driver_gets_grid_stream_and_parameters() -> None:
    cuda, launch = made()
    for stream in (0, 2**40):
        cuda.stream = stream
        q, k, v, out, lse = tensors = five()
        launch(*tensors)
        started = cuda.started[-1]
        assert (started.grid, started.block) == ((5, 2, 3), (128, 1, 1))
        assert (started.smem_bytes, started.stream, started.attributes) == (4096, stream, [])
        assert started.function == 0xF00
        assert [each[:64] for each in started.parameters] == [
            *(word(q), word(k) * 8, struct.pack("i", 7), struct.pack("f", 0.5)),
            *(word(v) * 8, word(lse), word(out), bytes(8)),
        ]


def test_a_kernel_may_start_before_the_one_before_it_has_ended() -> None:
    cuda = FakeCuda([each.size for each in PARAMETERS])
    launches = [
        PreparedLaunch(cuda.driver, replace(ENTRY, overlaps_kernel_before=overlaps), 5, PARAMETERS)
        for overlaps in (True, False)
    ]
    for launch in (*launches, *launches):
        launch(*five())
    # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is 6 in cuda.h.
    assert [each.attributes for each in cuda.started] == [[(6, 1)], []] * 2
    assert all(each.grid == (5, 2, 3) and each.stream == 0 for each in cuda.started)


def test_lengths_are_those_of_the_call() -> None:
    cuda, launch = made([Length(1, 0), Pointer(1), Length(4, 1), Value(struct.pack("i", 7))])
    for rows in (3, 4096):
        tensors = (torch.empty(1), torch.empty(rows, 2), *[torch.empty(1)] * 2, torch.empty(2, 5))
        launch(*tensors)
        assert cuda.started[-1].parameters == [
            *(struct.pack("i", rows), word(tensors[1]), struct.pack("i", 5), struct.pack("i", 7)),
        ]


def test_a_tensor_map_is_encoded_as_triton_does() -> None:
    cuda, launch = made()
    tensors = five()
    launch(*tensors)
    (misplaced, dtype, address, *rest), _ = cuda.encoded
    assert (misplaced, dtype, address) == (0, 9, tensors[1].data_ptr())
    # Axes from the contiguous one on; strides in bytes, without its own.
    assert rest[0] == (64, 100, 8, 2) and rest[1] == (1024, 128, 102400)
    assert rest[2] == (64, 64, 1, 1) and rest[3] == (1, 1, 1, 1)
    assert rest[4] == (0, 3, 2, 0)  # no interleave, swizzle, L2 promotion of 128 bytes, zeros


def test_what_lies_outside_a_tensor_may_be_nan() -> None:
    map = TensorMap(9, 2, (16,), (1,), (16,), 0, fill_nan=True)
    cuda, launch = made([Descriptor(0, map)])
    launch(*five())
    assert cuda.encoded[0][3:5] == ((16,), ()) and cuda.encoded[0][-1][-1] == 1


def test_tensor_maps_are_made_once_an_address_and_bounded() -> None:
    cuda, launch = made()
    q, _, v, out, lse = five()
    keys = [torch.empty(16) for _ in range(MAX_MAPS + 1)]
    for _ in range(3):
        launch(q, keys[0], v, out, lse)
    assert len(cuda.encoded) == 2
    for k in keys:
        launch(q, k, v, out, lse)
    assert len(cuda.encoded) == MAX_MAPS + 2
    launch(q, keys[-1], v, out, lse)
    assert len(cuda.encoded) == MAX_MAPS + 2
    launch(q, keys[0], v, out, lse)  # made first, dropped first
    assert len(cuda.encoded) == MAX_MAPS + 3
    assert cuda.started[-1].parameters[1][:64] == word(keys[0]) * 8


def test_all_launches_together_keep_a_bounded_number_of_tensor_maps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    before = prepared._Maps.total
    monkeypatch.setattr(prepared, "MAX_TOTAL_MAPS", before + 10)
    launches = [made()[1] for _ in range(4)]
    given = [five() for _ in range(8)]
    for launch in launches:
        for each in given:
            launch(*each)
    kept = [[len(maps.known) for _, _, maps in launch._descriptors] for launch in launches]
    assert sum(kept[0]) == 10 and kept[1:] == 3 * [[2, 2]]
    assert prepared._Maps.total == before + sum(map(sum, kept))
    launches.clear()
    del launch
    gc.collect()
    assert prepared._Maps.total == before


def test_a_thread_without_a_context_gets_the_device_s() -> None:
    for count in (len(PARAMETERS), 1):  # with tensor maps and without
        cuda, launch = made(PARAMETERS[:count])
        cuda.contexts = False
        launch(*five())
        assert cuda.bound == 1 and len(cuda.started) == 1


def test_failures_have_the_driver_s_words() -> None:
    for parameters, name in ((PARAMETERS, "cuTensorMapEncodeTiled"), ([], "cuLaunchKernelEx")):
        cuda, launch = made(list(parameters))
        cuda.fails = True
        with pytest.raises(RuntimeError, match=f"CUDA error 1 in {name}: invalid argument"):
            launch(*five())
        cuda.fails = False
        launch(*five())
        assert len(cuda.started) == 1


def test_threads_do_not_mix_their_tensors() -> None:
    cuda, launch = made()
    sets = [five() for _ in range(4)]

    def run(tensors: tuple[Tensor, ...]) -> None:
        for _ in range(200):
            launch(*tensors)

    threads = [threading.Thread(target=run, args=(tensors,)) for tensors in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    allowed = {
        (word(q), word(k) * 8, word(v) * 8, word(lse), word(out)) for q, k, v, out, lse in sets
    }
    seen = [tuple(started.parameters[i][:64] for i in (0, 1, 4, 5, 6)) for started in cuda.started]
    assert len(seen) == 800 and set(seen) == allowed


@pytest.mark.parametrize("capturing", [False, True])
def test_what_a_graph_captured_outlasts_its_plan(
    monkeypatch: pytest.MonkeyPatch, capturing: bool
) -> None:
    class Binary:
        pass

    binary = Binary()
    alive = weakref.ref(binary)
    cuda, launch = made(binary=binary)
    cuda.capturing = capturing
    launch(*five())
    cuda.capturing = False
    launch(*five())
    del launch, binary
    gc.collect()
    assert (alive() is not None) == capturing


def test_tables_are_counted_and_meet_each_stream_once(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    table = torch.zeros(100, dtype=torch.int32)
    cuda, launch = made(tables=[table])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: cuda.stream)
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: met.append(stream))
    assert launch.device_bytes == 400
    for stream in (1, 1, 2, 1):
        cuda.stream = stream
        launch(*five())
    assert met == [1, 2]


# ------------------------------------------------------------------------- which are the same


def test_launches_that_do_the_same_have_one_key() -> None:
    first, second = torch.arange(4), torch.arange(4)
    values = [[*PARAMETERS, Value(word(table))] for table in (first, second)]
    one, same = (made(v, tables=[t])[1].key for v, t in zip(values, (first, second), strict=True))
    assert one == same and hash(one) == hash(same)
    second[0] = 7
    assert made(values[1], tables=[second])[1].key != one, "the table says something else"
    assert made(values[0][:-1])[1].key != one
    wider = [replace(MAP, box=(1, 1, 64, 32)), MAP]
    keys = {made([Descriptor(1, map), Value(bytes(4))])[1].key for map in wider}
    assert len(keys) == 2
