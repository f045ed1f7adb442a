"""Attention over vLLM's pages without vLLM: batches as it describes them, beside fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import vllm_batches as batches
from tests.support.vllm_batches import Lengths
from tunefa.errors import TunefaError
from tunefa.integrations import vllm_attention as paged

HEADS, HEADS_KV, HEAD_DIM, PAGE = batches.SMALL

DECODES: Lengths = ((1, 9), (1, 1), (1, 40), (1, 16))
PROMPTS: Lengths = ((7, 7), (20, 50), (33, 33))
MIXED: Lengths = (*DECODES, *PROMPTS, (1, 17), (2, 90))
VERIFIED: Lengths = ((3, 9), (3, 30), (3, 3))
MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.linspace(-1, 2, HEADS)},
}


def mask_of(given: dict[str, Any]) -> tuple[paged.Mask, dict[str, Any]]:
    """A layer's mask, and the same for attention in fp64."""
    mask = paged.Mask(None, None, 0.3, None)._replace(**given)
    same = {"scale": 0.3, **given}
    if keys := same.pop("window", None):
        same["sides"] = keys - 1, 0
    return mask, same


def write(factors: tuple[Tensor, Tensor], *more: Any) -> None:
    k, v, cache, slots = more
    paged.write(k, v, cache, slots, factors)


def computed(
    lengths: Lengths, most: int, mask: paged.Mask, cache: Tensor, extra_rows: int = 0
) -> tuple[Tensor, Tensor, Any, Any]:
    """(out, q, the batch as vLLM describes it, keys and values), with all keys in the cache."""
    described = batches.common(lengths, extra_rows)
    kept = batches.texts(lengths, torch.float64)
    factors = torch.ones(()), torch.ones(())
    batches.fill(cache, described, kept, lambda *x: write(factors, *x))
    paged.write(*batches.new_rows(described, kept), cache, described.slot_mapping, factors)
    rows = described.num_actual_tokens
    q = torch.randn(rows + 2, HEADS, HEAD_DIM, dtype=torch.float64)
    out = torch.full_like(q, 7.0)
    batch = paged.batch_of(described, most)
    paged.attend(q, cache, batch, mask, out, batches.layer())
    return out, q, described, kept


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    "lengths", [DECODES, PROMPTS, MIXED, VERIFIED], ids=["decodes", "prompts", "mixed", "verified"]
)
def test_ragged_batches(lengths: Lengths, name: str, rows_first: bool) -> None:
    mask, same = mask_of(MASKS[name])
    cache = batches.empty_cache(40, torch.float64, rows_first)
    out, q, described, kept = computed(lengths, 3, mask, cache)
    right = batches.expected(q, described, kept, **same)
    torch.testing.assert_close(out[: len(right)], right, rtol=1e-6, atol=1e-6)
    assert bool((out[len(right) :] == 7).all()), "rows behind the batch were written"


def test_requests_at_the_front_decode_and_the_rest_are_prompts() -> None:
    batch = paged.batch_of(batches.common(MIXED), 1)
    assert (batch.decodes, batch.decode_queries, batch.seqlens.tolist()) == (4, 1, [9, 1, 40, 16])
    assert batch.prompts is not None
    assert batch.prompts.first_row == 4
    assert batch.prompts.cu_seqlens_q.tolist() == [0, 7, 27, 60, 61, 63]
    assert batch.prompts.seqlens.tolist() == [7, 50, 33, 17, 90]
    assert (batch.prompts.max_seqlen_q, batch.prompts.max_seqlen_k) == (33, 90)


@pytest.mark.parametrize(
    ("lengths", "most", "decodes", "queries"),
    [
        (DECODES, 1, 4, 1),
        (PROMPTS, 1, 0, 0),
        (VERIFIED, 3, 3, 3),
        (VERIFIED, 2, 0, 0),
        (((2, 9), (2, 9), (1, 9)), 3, 2, 2),
        (((1, 9), (3, 9)), 3, 1, 1),
    ],
)
def test_what_decodes(lengths: Lengths, most: int, decodes: int, queries: int) -> None:
    batch = paged.batch_of(batches.common(lengths), most)
    assert (batch.decodes, batch.decode_queries) == (decodes, queries)
    assert (batch.prompts is None) == (decodes == len(lengths))


def test_a_full_graph_has_requests_without_keys() -> None:
    """vLLM fills a captured batch with requests of no tokens, whose rows are there."""
    lengths = ((3, 9), (3, 30), (0, 0), (0, 0))
    mask, same = mask_of({})
    cache = batches.empty_cache(20, torch.float64)
    described = batches.common(lengths, extra_rows=6)
    batch = paged.batch_of(described, 3)
    assert (batch.decodes, batch.decode_queries, batch.prompts) == (4, 3, None)
    out, q, described, kept = computed(lengths, 3, mask, cache, extra_rows=6)
    right = batches.expected(q, described, kept, **same)
    torch.testing.assert_close(out[:6], right)
    assert bool((out[6:12] == 0).all())


def test_tensors_of_a_decode_batch_are_vllm_s_own() -> None:
    """So that a captured graph reads what vLLM writes there before each replay."""
    described = batches.common(DECODES)
    batch = paged.batch_of(described, 1)
    assert batch.seqlens.data_ptr() == described.seq_lens.data_ptr()
    assert batch.block_table.data_ptr() == described.block_table_tensor.data_ptr()


def test_only_the_host_is_asked() -> None:
    """Tensors of the device have no values here: reading one would raise."""
    described = batches.common(MIXED)
    for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
        setattr(described, name, getattr(described, name).to("meta"))
    assert paged.batch_of(described, 1).decodes == 4


@pytest.mark.parametrize("causal", [False, torch.tensor([True, False])])
def test_other_masks_raise(causal: object) -> None:
    described = batches.common(PROMPTS)
    described.causal = causal
    with pytest.raises(TunefaError, match=r"not causal.*choose another --attention-backend"):
        paged.batch_of(described, 1)


@pytest.mark.parametrize("rows_first", [False, True])
def test_new_keys_go_to_their_slots(rows_first: bool) -> None:
    cache = batches.empty_cache(3, torch.float32, rows_first)
    k, v = torch.randn(2, 5, HEADS_KV, HEAD_DIM)
    slots = torch.tensor([2 * PAGE + 15, -1, PAGE, 2 * PAGE])
    paged.write(k, v, cache, slots, (torch.ones(()), torch.ones(())))
    assert torch.equal(cache[2, :, 15], torch.cat([k[0], v[0]], -1))
    assert torch.equal(cache[1, :, 0], torch.cat([k[2], v[2]], -1))
    assert torch.equal(cache[2, :, 0], torch.cat([k[3], v[3]], -1))
    assert int(cache.isnan().sum()) == cache.numel() - 3 * HEADS_KV * 2 * HEAD_DIM


def test_a_cache_in_e4m3() -> None:
    described = batches.common(MIXED)
    kept = batches.texts(MIXED, torch.bfloat16)
    cache = batches.empty_cache(40, torch.uint8)
    layer = batches.layer(0.5, 2.0)
    factors = layer._k_scale, layer._v_scale
    batches.fill(cache, described, kept, lambda *x: write(factors, *x))
    paged.write(*batches.new_rows(described, kept), cache, described.slot_mapping, factors)
    q = torch.randn(described.num_actual_tokens, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    out, (mask, same) = torch.empty_like(q), mask_of({})
    paged.attend(q, cache, paged.batch_of(described, 1), mask, out, layer)
    stored: Any = [
        tuple(
            ((x.float() / f).to(torch.float8_e4m3fn).double() * f)
            for x, f in zip(each, factors, strict=True)
        )
        for each in kept
    ]
    right = batches.expected(q, described, stored, **same)
    torch.testing.assert_close(out.double(), right, rtol=2e-2, atol=2e-2)


def test_what_e4m3_cannot_hold_becomes_its_largest_number() -> None:
    cache = batches.empty_cache(1, torch.uint8)
    k = torch.full((1, HEADS_KV, HEAD_DIM), 1e4)
    paged.write(k, -k, cache, torch.tensor([3]), (torch.ones(()), torch.ones(())))
    keys, values = paged.halves(cache, HEAD_DIM)
    assert bool((keys[0, 3].float() == 448).all()) and bool((values[0, 3].float() == -448).all())
