"""tunefa/runtime/decode.py: attention over a cache, on the CPU, where PyTorch computes it."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.cache_calls import (
    BATCH,
    HEAD_DIM,
    HEADS,
    HEADS_KV,
    KEYS,
    expected,
    in_pages,
    made,
)
from tunefa.errors import TunefaError
from tunefa.runtime import decode_call
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import Decode


@pytest.mark.parametrize("seqlen_q", [1, 3])
@pytest.mark.parametrize("page_size", [None, 1, 16])
@pytest.mark.parametrize("window", [None, 5])
def test_it_is_attention_over_the_keys_of_each_sequence(
    seqlen_q: int, page_size: int | None, window: int | None
) -> None:
    given = made(seqlen_q)
    out, lse = expected(given, window)
    call = in_pages(given, page_size) if page_size else given
    found, found_lse = tunefa.decode_attention(**call, window=window, return_lse=True)
    torch.testing.assert_close(found, out)
    torch.testing.assert_close(found_lse, lse)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.how == "pytorch"


def test_heads_may_come_first() -> None:
    given = made()
    turned = {n: x.transpose(1, 2) if x.dim() == 4 else x for n, x in given.items()}
    found = tunefa.decode_attention(**turned, layout="bhsd")
    torch.testing.assert_close(found.transpose(1, 2), expected(given)[0])


def test_a_sink_is_one_more_score_without_a_value() -> None:
    given, sinks = made(), torch.randn(HEADS)
    out, lse = expected(given)
    found, found_lse = tunefa.decode_attention(**given, sinks=sinks, return_lse=True)
    with_sink = torch.logaddexp(lse, sinks.double()[None, :, None])
    share = (lse - with_sink).exp().transpose(1, 2)[..., None]
    torch.testing.assert_close(found, out * share)
    torch.testing.assert_close(found_lse, with_sink)


@pytest.mark.parametrize("page_size", [None, 4])
def test_new_keys_and_values_are_written_behind_the_others(page_size: int | None) -> None:
    given = made(seqlen_q=2)
    given["seqlens"] = torch.tensor([KEYS - 2, 7, 0], dtype=torch.int32)
    new = torch.randn(2, BATCH, 2, HEADS_KV, HEAD_DIM, dtype=torch.float64)
    whole = {**given, "k_cache": given["k_cache"].clone(), "v_cache": given["v_cache"].clone()}
    whole["seqlens"] = given["seqlens"] + 2
    for sequence, keys in enumerate(given["seqlens"].tolist()):
        whole["k_cache"][sequence, keys : keys + 2] = new[0, sequence]
        whole["v_cache"][sequence, keys : keys + 2] = new[1, sequence]
    call = given
    if page_size:
        call = in_pages({**given, "seqlens": given["seqlens"] + 2}, page_size)
        call["seqlens"] = given["seqlens"]
    found = tunefa.decode_attention(**call, k=new[0], v=new[1])
    torch.testing.assert_close(found, expected(whole)[0])
    again = tunefa.decode_attention(**{**call, "seqlens": whole["seqlens"]})
    assert torch.equal(again, found), "they are in the cache"


def test_a_sequence_has_the_same_bits_alone_and_in_a_batch() -> None:
    given = made(dtype=torch.float32)
    together = tunefa.decode_attention(**given)
    for sequence in range(BATCH):
        alone = {name: each[sequence : sequence + 1] for name, each in given.items()}
        assert torch.equal(tunefa.decode_attention(**alone)[0], together[sequence])


def test_the_output_may_be_given() -> None:
    given = made()
    out = torch.full_like(given["q"], math.nan)
    assert tunefa.decode_attention(**given, out=out) is out
    torch.testing.assert_close(out, expected(given)[0])


def test_it_compiles_without_graph_breaks() -> None:
    given = made(dtype=torch.float32)

    def step(q: Tensor, k: Tensor, v: Tensor, seqlens: Tensor) -> Tensor:
        return tunefa.decode_attention(q * 2, k, v, seqlens) + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given.values()), step(*given.values()))


def test_the_config_is_looked_up_for_the_family_alone() -> None:
    options = CacheOptions()
    asked = []
    for batch, keys in ((1, 40), (3, 9000)):
        q = torch.empty(batch, 1, HEADS, 64, dtype=torch.bfloat16)
        cache = torch.empty(batch, keys, HEADS_KV, 64, dtype=torch.bfloat16)
        tensors = CacheTensors(q, cache, cache, torch.ones(batch, dtype=torch.int32))
        job = Decode(CacheCall.of(tensors, options, None), None)
        assert (job.workload().batch, job.workload().seqlen_k) == (batch, keys)
        asked.append(job.asked())
    assert asked[0] == asked[1]


def test_lengths_do_not_change_the_plan() -> None:
    given = made(dtype=torch.float32)
    first = CacheTensors(*given.values())
    other = first._replace(seqlens=first.seqlens // 2)
    assert decode_call.key(first, CacheOptions(), None) == decode_call.key(
        other, CacheOptions(), None
    )


WRONG = [
    ({"seqlens": [1, 2, 3]}, "seqlens is a list: give (batch,), here (3,)"),
    ({"seqlens": torch.ones(3)}, "seqlens is (3,), torch.float32: give (batch,), here (3,)"),
    ({"seqlens": torch.ones(2).int()}, "seqlens is (2,), torch.int32"),
    ({"q": torch.randn(3, 1, 3, 16).double()}, "not a multiple of the 2 of the cache"),
    ({"q": torch.randn(3, 1, 4, 8).double()}, "head_dim of q is 8 and of k_cache 16"),
    ({"q": torch.randn(2, 1, 4, 16).double()}, "batch of q is 2 and of k_cache 3"),
    ({"q": torch.randn(3, 1, 4, 16)}, "k_cache is torch.float64 and q is torch.float32"),
    ({"block_table": torch.zeros(3, 2)}, "block_table is (3, 2), torch.float32"),
    ({"block_table": torch.zeros(2, 2).int()}, "block_table is (2, 2), torch.int32"),
    ({"sinks": torch.zeros(3)}, "sinks is (3,), torch.float32: give (heads,), here (4,)"),
    ({"window": 4, "causal": False}, "give causal=True"),
    ({"window": (4, 1), "causal": False}, "over a cache a window goes with a causal mask"),
    ({"softcap": -1.0}, "softcap is -1.0"),
    ({"scale": math.nan}, "scale is nan"),
    ({"layout": "sbhd"}, "layout 'sbhd'"),
    ({"out": torch.zeros(3, 1, 4, 8).double()}, "out is (3, 1, 4, 8)"),
    ({"k": torch.zeros(3, 1, 2, 16).double()}, "v is missing"),
    ({"k": torch.zeros(3, 1, 2, 16), "v": torch.zeros(3, 1, 2, 16)}, "k is (3, 2, 1, 16)"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_arguments_say_what_to_give(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TunefaError) as raised:
        tunefa.decode_attention(**{**made(), **change})
    assert message in str(raised.value)


def test_it_has_no_gradients() -> None:
    given = made()
    given["q"].requires_grad_()
    with pytest.raises(TunefaError, match="no gradients"):
        tunefa.decode_attention(**given)
    with torch.no_grad():
        tunefa.decode_attention(**given)


def test_random_calls_agree_with_the_definition() -> None:
    chance = random.Random(0)
    for seed in range(20):
        given = made(chance.choice([1, 2, 5]), seed=seed)
        given["seqlens"] = torch.tensor([chance.randint(0, n) for n in (KEYS, 7, 1)]).int()
        out, lse = expected(given)
        found = tunefa.decode_attention(
            **in_pages(given, chance.choice([1, 3, 8])), return_lse=True
        )
        torch.testing.assert_close(found[0], out)
        torch.testing.assert_close(found[1], lse)
