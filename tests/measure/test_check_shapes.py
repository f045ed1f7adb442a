"""tunefa/measure/check.py: the shapes that kernels are checked on, and their tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tunefa.measure import check
from tunefa.spec.workload import DTYPES, Workload

SMALL = Workload.parse("b2_h4_kv2_q7_k13_d32_dv48_fp32_causal")


CONFIG: dict[str, Any] = {
    "BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 1, "num_stages": 1,
    "USE_TMA": 0, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip


PACKED = Workload.parse("b3_h4_kv2_q7_k13_d32_dv48_fp32_causal_varlen")


def test_packed_tensors_have_the_lengths_of_the_workload() -> None:
    q, k, v, out, lse, *cu_seqlens = check.tensors(PACKED, "cpu", seed=0)
    assert q.shape == (15, 4, 32) and k.shape == (27, 2, 32) and v.shape == (27, 2, 48)
    assert out.shape == (15, 4, 48) and lse.shape == (4, 15)
    for starts, lengths in zip(cu_seqlens, zip(*PACKED.lengths, strict=True), strict=True):
        assert starts.dtype == torch.int32 and starts[0] == 0
        assert tuple(starts.diff().tolist()) == lengths
    assert all(each.is_contiguous() for each in (q, k, v, out, lse))


def test_ragged_packed_sequences_are_some() -> None:
    shape = check.ragged(Workload.parse("b32_q8192_varlen"), CONFIG)
    assert shape.varlen and len({rows for rows, _ in shape.lengths}) == 5


def test_tensors_have_the_shapes_of_the_workload() -> None:
    q, k, v, out, lse = check.tensors(SMALL, "cpu")
    assert q.shape == (2, 4, 7, 32)
    assert k.shape == (2, 2, 13, 32)
    assert v.shape == (2, 2, 13, 48)
    assert out.shape == (2, 4, 7, 48)
    assert lse.shape == (2, 4, 7) and lse.is_contiguous() and lse.dtype == torch.float32
    # Stored BSHD, and nothing in the outputs yet.
    assert all(tensor.transpose(1, 2).is_contiguous() for tensor in (q, k, v, out))
    assert out.isnan().all() and lse.isnan().all()
    assert abs(q.std().item() - 1) < 0.2


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_dtype_of_the_workload(dtype: str) -> None:
    made = check.tensors(replace(SMALL, dtype=dtype), "cpu")
    assert {tensor.dtype.itemsize for tensor in made[:3]} == {DTYPES[dtype]}
    assert made[3].dtype.itemsize == max(2, DTYPES[dtype])


def test_a_seed_makes_the_same_tensors_and_none_makes_others() -> None:
    first, again, other = (check.tensors(SMALL, "cpu", seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(check.tensors(SMALL, "cpu")[0], check.tensors(SMALL, "cpu")[0])


def test_making_tensors_leaves_the_callers_randomness_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    check.tensors(SMALL, "cpu")
    check.tensors(SMALL, "cpu", seed=3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("block_m", [16, 64, 256])
@pytest.mark.parametrize("block_n", [16, 256])
def test_ragged_shapes_divide_no_tile(block_m: int, block_n: int) -> None:
    workload = Workload.parse("b4_h32_kv8_q8192_d80_dv96_fp16_full")
    shape = check.ragged(workload, {"BLOCK_M": block_m, "BLOCK_N": block_n})
    same = ("op", "group", "head_dim", "head_dim_v", "dtype", "causal", "window_left")
    assert all(getattr(shape, name) == getattr(workload, name) for name in same)
    assert shape.heads_kv == 2
    assert shape.seqlen_q % block_m and shape.seqlen_k % block_n and shape.seqlen_q > block_m
    assert shape.seqlen_k > shape.seqlen_q and shape.seqlen_k > 2 * block_n
    packed_rows = shape.seqlen_q * shape.group
    assert packed_rows % block_m


@pytest.mark.parametrize("warpgroups", [1, 2, 3, 4])
def test_ragged_shapes_are_more_than_a_tile_of_warpgroups(warpgroups: int) -> None:
    shape = check.ragged(Workload.parse("q8192"), {"WARPGROUPS": warpgroups, "BLOCK_N": 64})
    assert 64 * warpgroups < shape.seqlen_q < 128 * warpgroups


@pytest.mark.parametrize("block_m", [16, 64, 256])
@pytest.mark.parametrize("block_n", [16, 256])
def test_ragged_windows_cross_blocks_and_skip_some(block_m: int, block_n: int) -> None:
    workload = Workload.parse("h32_kv8_q8192_causal_w4096")
    shape = check.ragged(workload, {"BLOCK_M": block_m, "BLOCK_N": block_n})
    assert shape.window_left is not None
    window = shape.window_left + 1
    assert block_n < window < 2 * block_n
    assert shape.seqlen_q % block_m and shape.seqlen_k % block_n and window % block_n
    diagonal = shape.seqlen_k - shape.seqlen_q
    assert 0 < diagonal < window  # the first rows see every key up to their own
    last_tile = (shape.seqlen_q - 1) // block_m * block_m
    assert last_tile + diagonal - window + 1 >= 2 * block_n  # keys that it does not see


@pytest.mark.parametrize("text", ["w4096_a100", "full_w4096", "a4096", "w1_a1"])
def test_ragged_windows_of_two_sides_keep_theirs(text: str) -> None:
    workload = Workload.parse(f"q8192_{text}")
    for block in (16, 64, 256):
        shape = check.ragged(workload, {"BLOCK_M": block, "BLOCK_N": block})
        for name, own_key in (("window_left", 1), ("window_right", 0)):
            asked, kept = getattr(workload, name), getattr(shape, name)
            beyond = block + block // 2 + 1
            assert kept == (asked if asked is None else min(asked, beyond - own_key))
        first = (shape.seqlen_k - shape.seqlen_q) + (shape.window_right or 0)
        assert shape.window_right is None or first < shape.seqlen_k - 2 * block  # keys not seen


def test_ragged_windows_are_never_wider_than_asked() -> None:
    shape = check.ragged(Workload.parse("q8192_w3"), {"BLOCK_M": 64, "BLOCK_N": 64})
    assert shape.window_left == 2
    assert check.ragged(Workload.parse("q8192"), CONFIG).window_left is None
