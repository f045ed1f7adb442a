"""tunefa/measure/hostile.py: the scores and values of its patterns, and the memory around."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tunefa.measure import check, hostile
from tunefa.spec.workload import Workload

SHAPE = Workload.parse("b2_h8_kv2_q200_k300_d64_bf16_full")


def made(shape: Workload, kind: hostile.Kind) -> tuple[Any, ...]:
    tensors = check.tensors(shape, "cpu", seed=0)
    hostile.change(shape, tensors, kind)
    return tensors


def rows_of(pattern: str, head: int = 0) -> list[int]:
    """The rows of a head of sequence 1 whose scores have the pattern."""
    named = [hostile.described(SHAPE, "mixed", 1, head, row) for row in range(SHAPE.seqlen_q)]
    return [row for row, name in enumerate(named) if name.startswith(pattern)]


def scores(head: int = 0) -> Any:
    """In nats: (rows, keys) of a head of sequence 1."""
    q, k, *_ = made(SHAPE, "mixed")
    return q[1, head].float() @ k[1, head // SHAPE.group].float().T / math.sqrt(SHAPE.head_dim)


@pytest.mark.parametrize(
    ("pattern", "nats"),
    [("scores rise along", 48), ("scores fall along", -48), ("scores rise slowly", 8)],
)
def test_maxima_rise_and_fall_from_block_to_block(pattern: str, nats: float) -> None:
    found = scores()[rows_of(pattern)]
    maxima = torch.stack([block.amax(1) for block in found.split(100, 1)], 1)
    steps = maxima.diff(dim=1).mean(0)
    assert len(found) > 20 and torch.allclose(steps, torch.tensor(nats / 3.0), rtol=0.35)


def test_one_key_dominates_and_equal_scores_are_equal() -> None:
    found = scores()
    lead = found[rows_of("one key dominates")].topk(2, 1).values
    assert float((lead[:, 0] - lead[:, 1]).min()) > 6.0
    assert float((lead[:, 0] - lead[:, 1]).mean()) > 14.0
    assert not found[rows_of("all scores are equal")].any()
    spread, normal = (found[rows_of(name)].std(1).mean() for name in ("scores have outliers", "V"))
    assert spread > 1.5 * normal


def test_patterns_change_from_row_to_row_or_from_warp_to_warp() -> None:
    assert 1 not in torch.tensor(rows_of("all scores are equal", head=0)).diff()
    rows = rows_of("all scores are equal", head=1)
    assert len(rows) >= 16 and rows[15] - rows[0] == 15


def test_v_has_one_sign_or_outliers() -> None:
    v = made(SHAPE, "hostile")[2].float()
    assert float(v[:, 0].min()) >= 0.5 and float(v[:, 1].min()) < -10.0
    assert float(v[:, 1].abs().max()) > 60.0


def test_normal_sequences_stay_as_they_are() -> None:
    normal, mixed = check.tensors(SHAPE, "cpu", seed=0), made(SHAPE, "mixed")
    for a, b, c in zip(normal[:3], mixed[:3], made(SHAPE, "normal")[:3], strict=True):
        assert torch.equal(a[0], b[0]) and not torch.equal(a[1], b[1]) and torch.equal(a, c)
    assert hostile.described(SHAPE, "mixed", 0, 3, 5) == ""
    described = hostile.described(SHAPE, "hostile", 0, 4, 0)
    assert described == "scores rise slowly along the keys and V has outliers"


def test_a_packed_batch_has_a_sequence_of_nan_between_others() -> None:
    packed = Workload.parse("b5_h4_kv2_q100_d32_bf16_varlen")
    assert hostile.roles(packed, "mixed") == ["normal", "hostile", "NaN", "normal", "hostile"]
    assert hostile.roles(packed, "hostile") == ["hostile", "hostile", "NaN", "hostile", "hostile"]
    assert set(hostile.roles(packed, "normal")) == {"normal"}
    q, k, v, _, _, starts, _ = made(packed, "mixed")
    poisoned = slice(int(starts[2]), int(starts[3]))
    for each in (q, k, v):
        empty = each.isnan().flatten(1).all(1)
        assert bool(empty[poisoned].all()) and int(empty.sum()) == poisoned.stop - poisoned.start


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        *(("b2_h4_kv2_q20_k30_d16", dtype) for dtype in ("bf16", "fp32", "e4m3")),
        *(("b5_h4_kv2_q20_d16_varlen", dtype) for dtype in ("fp16", "fp32")),
    ],
)
def test_memory_around_is_nan_and_inf(text: str, dtype: str) -> None:
    for tensor in check.tensors(Workload.parse(f"{text}_{dtype}"), "cpu", seed=0)[:3]:
        inner, memory = hostile.surrounded(tensor, is_input=True)
        assert torch.equal(inner.float(), tensor.float()) and inner.stride(-1) == 1
        assert (inner.data_ptr() - memory.data_ptr()) % 16 == 0
        assert all(step % 16 == 0 for step in inner.stride()[:-1])
        total = hostile.checksum(memory)
        inner.copy_(torch.zeros_like(inner))
        around = memory.float()
        assert int((around == 0).sum()) == tensor.numel() and hostile.checksum(memory) != total
        assert int(around.isnan().sum()) > tensor.numel()
        assert bool(around.isinf().any()) == (dtype != "e4m3")
        assert bool((around.isnan() | around.isinf() | (around == 0)).all())


def test_memory_around_outputs_is_nan() -> None:
    out, lse = check.tensors(SHAPE, "cpu", seed=0)[3:5]
    inner, memory = hostile.surrounded(out, is_input=False)
    assert inner.shape == out.shape and bool(memory.isnan().all())
    inner, memory = hostile.surrounded_lse(lse)
    assert inner.is_contiguous() and bool(memory.isnan().all())
    assert memory.numel() == lse.numel() + 2 * hostile.MARGIN
