"""Packed sequences: the list that the device makes, and where TMA finds and stops at what."""

from __future__ import annotations

import functools
import importlib
import random
import re
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import processes
from tests.support.fake_cuda import FakeCuda
from tests.support.launch_specs import spec_of
from tests.support.packed_tables import UNWRITTEN
from tunefa.compile import languages
from tunefa.compile.contract import Compiled
from tunefa.compile.launch import triton_abi
from tunefa.compile.launch.arguments import Descriptor, Length, Pointer
from tunefa.compile.launch.tensor_map import TensorMap
from tunefa.measure import check
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_gluon_sm90")
SM90 = Target.named("sm90")
WORKLOAD = Workload.parse("b4_h8_kv2_q300_k500_d128_bf16_causal_varlen")


@pytest.fixture(scope="module")
def tables() -> list[dict[str, Any]]:
    return processes.interpreted("packed_tables")


def listed(case: dict[str, Any]) -> list[tuple[int, ...]]:
    """The tiles in order, plainly."""
    rows, heads, group = case["rows"], case["heads"], case["group"]
    places = []
    q_begin = k_begin = 0
    for seqlen_q, seqlen_k in zip(case["seqlens_q"], case["seqlens_k"], strict=True):
        places.append((q_begin, seqlen_q, k_begin, seqlen_k))
        q_begin, k_begin = q_begin + seqlen_q, k_begin + seqlen_k
    tiles: list[tuple[int, ...]] = []
    for place in sorted(places, key=lambda place: -place[3]):
        at_once = max(1, case["section"] // max(1, place[3])) * group
        for first in range(0, heads, at_once):
            section = range(first, min(heads, first + at_once))
            for row in reversed(range(0, place[1], rows)):
                tiles += [(head, head // group, row, *place) for head in section]
    return tiles


def test_the_list_is_that_which_sorting_gives(tables: list[dict[str, Any]]) -> None:
    assert len(tables) > 20
    for each in tables:
        right = listed(each["case"])
        found = [tuple(tile[:7]) for tile in each["tiles"]]
        assert found[: len(right)] == right, each["case"]


def test_the_list_ends_and_its_tile_counter_is_0(tables: list[dict[str, Any]]) -> None:
    for each in tables:
        total = len(listed(each["case"]))
        assert each["schedule"] == [0, total]
        end, *rest = each["tiles"][total:]
        assert end[2] == -1
        assert all(x == UNWRITTEN for x in [*end[:2], *end[3:]])
        assert all(x == UNWRITTEN for tile in rest for x in tile)


def test_every_row_of_every_head_is_in_one_tile(tables: list[dict[str, Any]]) -> None:
    for each in tables:
        case, (_, total) = each["case"], each["schedule"]
        seen = [
            (head, q_begin + row)
            for head, _, row, q_begin, seqlen_q, *_ in each["tiles"][:total]
            for row in range(row, min(row + case["rows"], seqlen_q))
        ]
        assert len(seen) == len(set(seen)) == case["heads"] * sum(case["seqlens_q"])


# ----------------------------------------------------------------------- how CTAs take tiles


@functools.cache
def binary(text: str, **changes: Any) -> Compiled:
    case = Case(KERNEL, Workload.parse(text), SM90)
    config = {**case.default(), **changes}
    assert case.refusal(config) is None
    made: Compiled = languages.load("gluon").compile(case, config)
    return made


LISTED = pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("b32_q4096_d64_varlen", {}),  # four warpgroups, which leave the fewest registers
        ("b32_q4096_d128_varlen", {}),
        ("b32_q4096_d128_varlen", {"Q_STAGES": 1, "EPILOGUE_SUBTILE": 1, "RESCALE_THRESHOLD": 0}),
        ("b32_q4096_d256_varlen", {}),
        ("b32_q4096_d96_full_w512_a100_softcap_varlen", {}),
    ],
)


@pytest.mark.skipif(
    tuple(map(int, version("triton").split(".")[:2])) > (3, 7),
    reason="with 3.9, head_dim 64 spills, packed or not",
)
@LISTED
def test_nothing_spills(text: str, changes: dict[str, Any]) -> None:
    assert binary(text, **changes).resources.spill_bytes == 0


@LISTED
def test_one_atomic_takes_a_tile(text: str, changes: dict[str, Any]) -> None:
    ptx = binary(text, **changes).binary.asm["ptx"]
    (atomic,) = re.finditer(r"@%p\d+ atom\.global\.gpu\.relaxed\.add\.u32", ptx)
    assert len(re.findall(r"\batom\b", ptx)) == 1
    # All of the producer, who waits for no warp of the consumers but at mbarriers.
    producer = ptx[: atomic.start()].rpartition("barrier.sync")[2]
    producer += ptx[atomic.start() :].partition("barrier.sync")[0]
    assert "bar.sync" not in producer
    assert producer.count("redux.sync.max.s32") == 1
    assert producer.count("st.shared.v4.b32") >= 2  # a tile and, maybe elsewhere, the end


def test_dense_problems_have_a_table() -> None:
    # In Triton's cache where tests/contracts has compiled it.
    ptx = binary("h32_kv8_q4096_d128_bf16_causal").binary.asm["ptx"]
    assert not re.search(r"\batom\b", ptx) and "redux" not in ptx


def test_work_info_stays_until_all_consumers_have_read_it() -> None:
    """The producer overwrites it when all have released the queries of Q_STAGES + 1 tiles ago."""
    stages = next(each for each in KERNEL.space.parameters if each.name == "Q_STAGES")
    tiles = importlib.import_module("tunefa.kernels.gluon.tiles")
    assert tiles.WORK_INFO_STAGES.value > max(stages.values)


# --------------------------------------------------------------------- what the device is handed


@pytest.fixture
def launched() -> Any:
    """Tensors of WORKLOAD with the scratch memory of a call, and the kernel's and its preprocess's
    parameters for them."""
    case = Case(KERNEL, WORKLOAD, SM90)
    config = case.default()
    compiled = binary(str(WORKLOAD))
    made = check.tensors(WORKLOAD, "cpu", seed=0)
    spec = spec_of(KERNEL, WORKLOAD, config)
    shapes = KERNEL.module.scratch(made, spec)
    made += tuple(torch.empty(shape, dtype=dtype) for shape, dtype in shapes)
    main = KERNEL.module.arguments(made, spec)
    first = KERNEL.module.preprocess_arguments(made, spec)
    return SimpleNamespace(
        tensors=made,
        config=config,
        grids=(first[0], main[0]),
        first=triton_abi.parameters(compiled.preprocess, first[1], made),
        main=triton_abi.parameters(compiled.binary, main[1], made),
    )


def test_a_call_brings_all_that_changes(launched: Any) -> None:
    (first, first_tables), (main, main_tables) = launched.first, launched.main
    assert not first_tables and not main_tables
    assert [x.tensor for x in first if isinstance(x, Pointer)] == [5, 6, 7, 8]
    assert [x for x in first if isinstance(x, Length)] == [Length(5, 0)]
    assert [x.tensor for x in main if isinstance(x, Pointer)] == [4, 7, 8]
    assert [x for x in main if isinstance(x, Length)] == [Length(4, 1)]
    places = [x.tensor for x in main if isinstance(x, Descriptor)]
    assert places == [0, 1, 2, 3] * 2


def test_there_is_room_for_as_many_as_the_next_powers_of_two(launched: Any) -> None:
    lengths = WORKLOAD.lengths  # 750 rows: up to 1024
    rows = 64 * launched.config["WARPGROUPS"]
    assert sum(each for each, _ in lengths) == 750
    schedule, tiles = launched.tensors[-2:]
    most = 1024 // rows + 4
    assert tiles.shape == (most * 8 + 1, 8) and schedule.shape == (2,)
    assert launched.grids == ((-(-most // 32), 1, 1), (min(132, most * 8), 1, 1))


def test_a_section_is_as_the_config_says(launched: Any) -> None:
    config = {**launched.config, "L2_SECTION_MB": 16}
    spec = spec_of(KERNEL, WORKLOAD, config)
    _, arguments = KERNEL.module.preprocess_arguments(launched.tensors, spec)
    section = arguments[7]
    assert section * 2 * (128 + 128) == 16 * 2**20  # bytes of K and V of one KV head


def address(map: TensorMap, coordinates: Sequence[int]) -> int | None:
    """The place that TMA reads, in elements from the tensor's start; None outside of it."""
    if any(not 0 <= x < size for x, size in zip(coordinates, map.shape, strict=True)):
        return None
    step = map.element_bytes
    total = sum(x * s * step for x, s in zip(coordinates, map.strides, strict=True))
    wrapped = (total + 2**63) % 2**64 - 2**63
    assert wrapped % step == 0
    return wrapped // step


def test_a_sequence_ends_where_it_ends(launched: Any) -> None:
    """With the coordinates of `tma_coordinates` in kernels/gluon/pipeline.py."""
    chance = random.Random(0)
    maps = [each for each in launched.main[0] if isinstance(each, Descriptor)]
    for each in maps[:4]:
        tensor: Tensor = launched.tensors[each.tensor]
        cu_seqlens = launched.tensors[5 if each.tensor in (0, 3) else 6].tolist()
        for begin, end in pairwise(cu_seqlens):
            for row in (0, 1, end - begin - 1, end - begin, end - begin + 63):
                head, column = chance.randrange(tensor.shape[1]), chance.randrange(128)
                length, limit = end - begin, 2**30
                found = address(
                    each.map, (limit, begin + length, head, limit - length + row, column)
                )
                if row < length:
                    right = tensor[begin + row, head, column].storage_offset()
                    assert found == right
                else:
                    assert found is None


def test_the_driver_takes_the_strides(launched: Any) -> None:
    """Bytes, below 2^40 and multiples of 16 (CUDA driver API, cuTensorMapEncodeTiled)."""
    cuda = FakeCuda([])
    for each in launched.main[0]:
        if isinstance(each, Descriptor):
            each.map.at(4096, cuda.driver, 0)
    assert len(cuda.encoded) == 8
    for encoded in cuda.encoded:
        dims, strides, box = encoded[3:6]
        assert len(dims) == 5 and all(1 <= size <= 2**32 for size in dims)
        assert all(step % 16 == 0 and step < 2**40 for step in strides)
        assert box[2:] == (1, 1, 1) and sum(strides[2:]) == 2**35  # of 2 bytes an element
