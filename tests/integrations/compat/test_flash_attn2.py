"""flash-attn 2.8's functions, beside fp64."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import paged_calls
from tests.support.exact_attention import close, exact
from tunefa.integrations.compat import flash_attn2

fa2: Any = flash_attn2  # its results have several types


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


CASES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "window_size": (3, -1)},
    {"window_size": (3, 2)},
    {"softmax_scale": 0.3, "softcap": 2.0, "causal": True},
]


def right_of(named: dict[str, Any]) -> dict[str, Any]:
    names = {"causal": "causal", "window_size": "sides", "softmax_scale": "scale"}
    return {names.get(name, name): value for name, value in named.items()}


@pytest.mark.parametrize("named", CASES, ids=str)
def test_dense(named: dict[str, Any]) -> None:
    q, k, v = normal(2, 7, 4, 16), normal(2, 11, 2, 16), normal(2, 11, 2, 16)
    out, lse, probabilities = fa2.flash_attn_func(q, k, v, **named, return_attn_probs=True)
    right, right_lse = exact(q, k, v, **right_of(named))
    close((out, lse), (right, right_lse))
    assert probabilities is None
    grads = torch.autograd.grad(out.cos().sum(), (q, k, v))
    close(grads, torch.autograd.grad(right.cos().sum(), (q, k, v)))
    kv = torch.stack([k, v], 2)
    assert torch.equal(fa2.flash_attn_kvpacked_func(q, kv, 0.0, **named), out)


def test_positional_arguments_are_those_of_flash_attn() -> None:
    qkv = normal(2, 9, 3, 4, 16)
    found = fa2.flash_attn_qkvpacked_func(qkv, 0.0, 0.2, True, (4, 0), 3.0, None, True)
    right, _ = exact(*qkv.unbind(2), causal=True, sides=(4, 0), scale=0.2, softcap=3.0)
    close(found, right)


@pytest.mark.parametrize("named", CASES, ids=str)
def test_packed(named: dict[str, Any]) -> None:
    lengths_q, lengths_k = (5, 0, 3), (7, 2, 3)
    q, k, v = normal(8, 4, 16), normal(12, 2, 16), normal(12, 2, 16)
    starts_q, starts_k = (
        torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k)
    )
    rest = starts_q, starts_k, 5, 7
    out, lse, _ = fa2.flash_attn_varlen_func(q, k, v, *rest, **named, return_attn_probs=True)
    lengths = lengths_q, lengths_k, lengths_k
    parts = zip(
        *(torch.split(x, [*n]) for x, n in zip((q, k, v), lengths, strict=True)), strict=True
    )
    made = [exact(*(x[None] for x in part), **right_of(named)) for part in parts]
    close(out, torch.cat([one[0] for one, _ in made]))
    close(lse, torch.cat([one[0] for _, one in made], 1))
    kv = torch.stack([k, v], 1)
    assert torch.equal(fa2.flash_attn_varlen_kvpacked_func(q, kv, *rest, **named), out)
    qkv = torch.stack([q, q, q], 1)
    same = fa2.flash_attn_varlen_qkvpacked_func(qkv, starts_q, 5, **named)
    other = fa2.flash_attn_varlen_func(q, q, q, starts_q, starts_q, 5, 5, **named)
    assert torch.equal(same, other)


PAGED: list[tuple[dict[str, Any], tuple[int | None, int | None]]] = [
    ({"causal": True}, (None, 0)),
    ({}, (None, None)),
    ({"causal": True, "window_size": (3, 5)}, (3, 0)),
    ({"window_size": (3, 2)}, (3, 2)),
]


@pytest.mark.parametrize(("named", "band"), PAGED, ids=str)
def test_packed_queries_over_pages(
    named: dict[str, Any], band: tuple[int | None, int | None]
) -> None:
    given = paged_calls.made(page_size=4)
    starts = given["cu_seqlens_q"], torch.nn.functional.pad(given["seqlens_k"].cumsum(0), (1, 0))
    rest = *(x.int() for x in starts), given["max_seqlen_q"], int(given["seqlens_k"].max())
    cache = given["q"], given["k"], given["v"]
    out, lse, _ = fa2.flash_attn_varlen_func(
        *(*cache, *rest), block_table=given["block_table"], return_attn_probs=True, **named
    )
    right, right_lse = paged_calls.expected(given, *band)
    count = len(right)
    torch.testing.assert_close(out[:count], right)
    torch.testing.assert_close(
        lse[:, :count], right_lse.masked_fill(right_lse.isneginf(), math.inf)
    )


def test_pages_have_no_gradients_and_need_lengths_in_int32() -> None:
    q, k = normal(4, 4, 16), torch.randn(2, 8, 2, 16)
    starts, table = torch.tensor([0, 4], dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(tunefa.TunefaError, match="with block_table has no gradients"):
        fa2.flash_attn_varlen_func(q, k, k, starts, starts, 4, 4, block_table=table)
    with pytest.raises(tunefa.TunefaError, match=r"cu_seqlens_k is torch\.int64: convert it"):
        fa2.flash_attn_varlen_func(q, k, k, starts, starts.long(), 4, 4, block_table=table)


def test_rows_that_see_no_key() -> None:
    q, k = normal(1, 5, 2, 8), normal(1, 3, 2, 8)
    out, lse, _ = fa2.flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
    assert not out[:, :2].any() and lse[..., :2].isposinf().all() and lse[..., 2:].isfinite().all()


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "pages"])
def test_a_cache_that_grows(paged: bool) -> None:
    counts = torch.tensor([5, 9], dtype=torch.int32)
    keys, values = torch.randn(2, 16, 2, 16), torch.randn(2, 16, 2, 16)
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32) if paged else None
    caches = [x.clone() for x in (keys, values)]
    if table is not None:
        caches = [torch.empty(4, 8, 2, 16) for _ in caches]
        for cache, x in zip(caches, (keys, values), strict=True):
            cache[table.flatten().long()] = x.reshape(4, 8, 2, 16)
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 1, 2, 16), torch.randn(2, 1, 2, 16)
    named: dict[str, Any] = {"cache_seqlens": counts, "block_table": table}
    out, lse = fa2.flash_attn_with_kvcache(
        q, *caches, k, v, **named, return_softmax_lse=True, num_splits=4
    )
    again = fa2.flash_attn_with_kvcache(
        q, *caches, cache_seqlens=counts + 1, block_table=table, window_size=(2, -1)
    )
    for i, count in enumerate(counts.tolist()):
        whole = [torch.cat([x[i : i + 1, :count], new[i : i + 1]], 1)
                 for x, new in ((keys, k), (values, v))]  # fmt: skip
        right, right_lse = exact(q[i : i + 1], *whole)
        close((out[i], lse[i]), (right[0], right_lse[0]))
        windowed, _ = exact(q[i : i + 1], *whole, causal=True, sides=(2, -1))
        close(again[i], windowed[0])


def test_cache_seqlens_may_be_a_number_or_left_out() -> None:
    q, k = torch.randn(2, 2, 4, 16), torch.randn(2, 9, 4, 16)
    close(fa2.flash_attn_with_kvcache(q, k, k), exact(q, k, k)[0])
    found = fa2.flash_attn_with_kvcache(q, k, k, cache_seqlens=6, causal=True)
    close(found, exact(q, k[:, :6], k[:, :6], causal=True)[0])
    table = torch.zeros(2, 1, dtype=torch.int32)
    with pytest.raises(tunefa.TunefaError, match="cache_seqlens is missing"):
        fa2.flash_attn_with_kvcache(q, k, k, block_table=table)


LACKING: list[tuple[Any, dict[str, Any], str]] = [
    (fa2.flash_attn_func, {"dropout_p": 0.1}, "dropout_p of flash_attn_func is 0.1"),
    (fa2.flash_attn_func, {"alibi_slopes": torch.ones(4)}, "alibi_slopes of flash_attn_func"),
    (fa2.flash_attn_with_kvcache, {"rotary_cos": torch.ones(1)}, "rotary_cos"),
    (fa2.flash_attn_with_kvcache, {"cache_leftpad": torch.ones(1)}, "cache_leftpad"),
    (fa2.flash_attn_with_kvcache, {"cache_batch_idx": torch.ones(1)}, "cache_batch_idx"),
]


@pytest.mark.parametrize(("function", "named", "said"), LACKING, ids=lambda x: str(x)[:30])
def test_what_tunefa_has_not_is_named(function: Any, named: dict[str, Any], said: str) -> None:
    q = torch.randn(1, 4, 4, 16)
    with pytest.raises(tunefa.TunefaError, match=f"{said}.*tunefa has none"):
        function(q, q, q, **named)


def test_the_names_of_flash_attn_are_there() -> None:
    names = {name for name in vars(fa2) if name.startswith("flash_attn_")}
    assert names == {
        *("flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func"),
        *("flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func"),
        *("flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"),
    }
    first = [*inspect.signature(fa2.flash_attn_func).parameters]
    assert first[3:] == [
        *("dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes"),
        *("deterministic", "return_attn_probs"),
    ]
