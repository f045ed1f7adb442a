"""tunefa/runtime/prefill.py: `flash_attention_varlen` over pages on the CPU, where PyTorch computes
it."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.paged_calls import HEAD_DIM, HEADS, HEADS_KV, expected, found, made, sequence
from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3

MASKS: list[tuple[dict[str, Any], tuple[int | None, int | None]]] = [
    ({"causal": True}, (None, 0)),
    ({}, (None, None)),
    ({"causal": True, "window": 4}, (3, 0)),
    ({"window": (2, 3)}, (2, 3)),
    ({"window": (None, 1)}, (None, 1)),
    ({"window": (3, None)}, (3, None)),
]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("mask", "band"), MASKS)
def test_it_is_attention_over_the_pages_of_each_sequence(
    page_size: int, mask: dict[str, Any], band: tuple[int | None, int | None]
) -> None:
    given = made(page_size=page_size)
    for mine, right in zip(found(given, **mask), expected(given, *band), strict=True):
        torch.testing.assert_close(mine, right)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.how == "pytorch"


def test_it_agrees_with_packed_keys() -> None:
    given = made()
    keys = [sequence(given, number)[1:] for number in range(len(given["seqlens_k"]))]
    k, v = (torch.cat(each) for each in zip(*keys, strict=True))
    starts = torch.nn.functional.pad(given["seqlens_k"].cumsum(0), (1, 0)).int()
    longest = given["max_seqlen_q"], int(given["seqlens_k"].max())
    count = int(given["cu_seqlens_q"][-1])
    out, lse = tunefa.flash_attention_varlen(
        *(given["q"][:count], k, v, given["cu_seqlens_q"], starts, *longest),
        causal=True, softcap=2.0, scale=0.3, return_lse=True,
    )  # fmt: skip
    mine, mine_lse = found(given, causal=True, softcap=2.0, scale=0.3)
    torch.testing.assert_close(mine, out)
    torch.testing.assert_close(mine_lse, lse)


def test_a_sink_is_one_more_score_without_a_value() -> None:
    given, sinks = made(), torch.randn(HEADS)
    out, lse = expected(given)
    mine, mine_lse = found(given, causal=True, sinks=sinks)
    with_sink = torch.logaddexp(lse, sinks.double()[:, None])
    torch.testing.assert_close(mine_lse, with_sink)
    torch.testing.assert_close(mine, out * (lse - with_sink).exp().T[..., None])


def test_caches_may_have_heads_first_and_lengths_beyond_their_pages() -> None:
    given = made()
    turned = {n: given[n].transpose(1, 2).contiguous().transpose(1, 2) for n in "kv"}
    for mine, right in zip(found({**given, **turned}), found(given), strict=True):
        assert torch.equal(mine, right)
    full = {**given, "block_table": torch.zeros_like(given["block_table"])}
    full |= {name: given[name].nan_to_num() for name in "kv"}
    most = full["block_table"].shape[1] * 4
    lengths = torch.full_like(given["seqlens_k"], most)
    over = found({**full, "seqlens_k": lengths + 1000}, causal=True)
    for mine, right in zip(over, found({**full, "seqlens_k": lengths}, causal=True), strict=True):
        assert torch.equal(mine, right)


def test_a_cache_in_e4m3_is_multiplied_by_its_factors() -> None:
    given = made(dtype=torch.float32)
    given |= {name: given[name].to(E4M3) for name in "kv"} | {"q": given["q"].bfloat16()}
    factors = 0.5 + torch.rand(2, len(given["seqlens_k"]), HEADS_KV)
    wide = {name: given[name].double() for name in "kv"}
    for number in range(len(given["seqlens_k"])):
        pages = given["block_table"][number, : math.ceil(int(given["seqlens_k"][number]) / 4)]
        for name, factor in zip("kv", factors[:, number].double(), strict=True):
            wide[name][pages.long()] *= factor[:, None]
    right = expected({**given, **wide, "q": given["q"].double()})
    mine = found(given, causal=True, k_descale=factors[0], v_descale=factors[1])
    torch.testing.assert_close(mine[0].double(), right[0], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(mine[1].double(), right[1], atol=1e-2, rtol=1e-2)
    ones = {"k_descale": torch.ones(()), "v_descale": torch.ones(1, HEADS_KV)}
    assert found(given, **ones)[0].dtype == torch.bfloat16


def test_the_output_may_be_given() -> None:
    given = made()
    out = torch.zeros_like(given["q"])
    assert tunefa.flash_attention_varlen(**given, out=out) is out
    torch.testing.assert_close(out[: len(expected(given)[0])], expected(given, None, None)[0])


def test_nothing_to_compute() -> None:
    none = made(((0, 0), (0, 3)))
    out, lse = found(none)
    assert out.shape == (0, HEADS, HEAD_DIM) and lse.shape == (HEADS, 0)
    given = {**made(), "block_table": torch.zeros(6, 0, dtype=torch.int32)}
    out, lse = found(given)
    assert not out.any() and bool(lse.isneginf().all())


def test_it_compiles_without_graph_breaks_with_any_lengths() -> None:
    def step(given: dict[str, Any], out: Tensor | None) -> Tensor:
        more = {**given, "q": given["q"] * 2, "causal": True, "out": out}
        result: Tensor = tunefa.flash_attention_varlen(**more) + 1
        return result

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in (((3, 9), (2, 2)), ((8, 8), (1, 30), (0, 4))):
        given = made(lengths, dtype=torch.float32)
        count = int(given["cu_seqlens_q"][-1])
        for out in (None, torch.zeros_like(given["q"])):
            right = step(given, out)[:count]
            torch.testing.assert_close(compiled(given, out)[:count], right)


def test_the_op_is_sound() -> None:
    given = made(((3, 9), (2, 2)), dtype=torch.float32)
    names = ("q", "k", "v", "cu_seqlens_q", "seqlens_k", "block_table")
    given["q"], given["k"] = given["q"][:5], given["k"].nan_to_num()
    options = (True, None, None, "thd", None, 3, 0, False, "precise", None)
    arguments = (*(given[name] for name in names), None, None, None, *options)
    torch.library.opcheck(torch.ops.tunefa.prefill_attention.default, arguments)


WRONG = [
    ({"seqlens_k": None}, "seqlens_k is missing: with block_table give the number of keys"),
    ({"cu_seqlens_k": torch.zeros(7).int()}, "cu_seqlens_k is given with block_table: sequences"),
    ({"block_table": None}, "seqlens_k is given without block_table: it goes with keys"),
    ({"block_table": None, "seqlens_k": None, "out": 3}, "out is given without block_table"),
    ({"seqlens_k": [1] * 6}, "seqlens_k is a list: give (batch,), here (6,)"),
    ({"seqlens_k": torch.ones(6)}, "seqlens_k is (6,), torch.float32: give (batch,), here (6,)"),
    ({"seqlens_k": torch.ones(5).int()}, "seqlens_k is (5,), torch.int32: give (batch,)"),
    ({"cu_seqlens_q": [0, 3]}, "cu_seqlens_q is a list: give a torch.Tensor, (batch + 1,)"),
    ({"cu_seqlens_q": torch.arange(7)}, "cu_seqlens_q is torch.int64: convert it"),
    ({"cu_seqlens_q": torch.tensor([0, 9, 3, 4, 4, 4, 4]).int()}, "cu_seqlens_q is [0, 9, 3"),
    ({"cu_seqlens_q": torch.tensor([0, 1, 2, 3, 4, 5, 99]).int()}, "row numbers of q from 0 to 30"),
    ({"max_seqlen_q": None}, "max_seqlen_q is None: give the length of the longest sequence"),
    ({"max_seqlen_q": 3}, "max_seqlen_q is at most 3 and a sequence is 12 long"),
    ({"max_seqlen_k": -1}, "max_seqlen_k is -1"),
    ({"block_table": torch.zeros(6, 2)}, "block_table is (6, 2), torch.float32"),
    ({"block_table": torch.zeros(5, 2).int()}, "block_table is (5, 2), torch.int32"),
    ({"k": torch.zeros(9, HEADS_KV, HEAD_DIM)}, "k has 3 axes, (9, 2, 16): give 4, with block_tab"),
    ({"q": torch.zeros(2, 3, HEADS, HEAD_DIM)}, "q has 4 axes"),
    ({"q": torch.zeros(30, 3, HEAD_DIM).double()}, "q has 3 heads, which is not a multiple of the"),
    ({"q": torch.zeros(30, HEADS, 8).double()}, "head_dim of q is 8 and of k 16"),
    ({"q": torch.zeros(30, HEADS, HEAD_DIM)}, "k is torch.float64 and q is torch.float32"),
    ({"v": torch.zeros(3, 5, HEADS_KV, HEAD_DIM).double()}, "page_size of k is 4 and of v 5"),
    ({"sinks": torch.zeros(3)}, "sinks is (3,), torch.float32: give (heads,), here (4,)"),
    ({"k_descale": torch.ones(6, 2)}, "k_descale goes with a cache in torch.float8_e4m3fn"),
    ({"window": 4}, "window is 4 and causal is False"),
    ({"softcap": -1.0}, "softcap is -1.0"),
    ({"scale": math.nan}, "scale is nan"),
    ({"out": torch.zeros(30, HEADS, 8).double()}, "out is (30, 4, 8)"),
    ({"page_size": 16}, "page_size"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_arguments_say_what_to_give(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TunefaError) as raised:
        tunefa.flash_attention_varlen(**{**made(), **change})
    assert message in str(raised.value)


def test_e4m3_queries_and_missing_factors_are_refused() -> None:
    given = made(dtype=torch.float32)
    caches = {name: given[name].to(E4M3) for name in "kv"}
    with pytest.raises(TunefaError, match=r"q is torch\.float8_e4m3fn: over a cache with pages"):
        tunefa.flash_attention_varlen(**{**given, **caches, "q": given["q"].to(E4M3)})
    with pytest.raises(TunefaError, match="k_descale is missing"):
        tunefa.flash_attention_varlen(**{**given, **caches, "q": given["q"].half()})


def test_it_has_no_gradients() -> None:
    given = made()
    given["q"].requires_grad_()
    with pytest.raises(TunefaError, match="with block_table has no gradients"):
        tunefa.flash_attention_varlen(**given)
    with torch.no_grad():
        tunefa.flash_attention_varlen(**given)


def test_random_calls_agree_with_the_definition() -> None:
    chance = random.Random(0)
    for seed in range(20):
        lengths = tuple((chance.randint(0, 9), chance.randint(0, 20)) for _ in range(4))
        given = made(lengths, chance.choice([1, 3, 8]), seed=seed)
        mask, band = chance.choice(MASKS)
        for mine, right in zip(found(given, **mask), expected(given, *band), strict=True):
            torch.testing.assert_close(mine, right)


def test_rows_of_no_sequence_stay_as_they_are_when_compiled() -> None:
    given = made()
    rows = int(given["cu_seqlens_q"][-1])
    given["q"] = torch.cat([given["q"], given["q"][:2]])
    shape = (*given["q"].shape[:-1], given["v"].shape[-1])
    outs = [torch.full(shape, 7.0, dtype=given["q"].dtype) for _ in range(2)]
    call = tunefa.flash_attention_varlen
    call(**given, out=outs[0])
    torch.compile(call, fullgraph=True, backend="aot_eager")(**given, out=outs[1])
    assert torch.equal(*outs) and bool((outs[0][rows:] == 7.0).all())
