"""tunefa/runtime/decode_call.py: what a call over a cache says of itself, and which calls share a
plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors, check_out, key

BATCH, ROWS, HEADS, HEADS_KV, DIM, DIM_V, KEYS = 3, 2, 4, 2, 64, 32, 40
PAGES, PAGE, PAGES_EACH = 11, 16, 3


def made(dtype: torch.dtype = torch.bfloat16, paged: bool = False, **changes: Any) -> CacheTensors:
    """The tensors of a call in bshd, some of them changed."""
    size = (PAGES, PAGE) if paged else (BATCH, KEYS)
    given: dict[str, Any] = {
        "q": torch.zeros(BATCH, ROWS, HEADS, DIM, dtype=dtype),
        "k": torch.zeros(*size, HEADS_KV, DIM, dtype=dtype),
        "v": torch.zeros(*size, HEADS_KV, DIM_V, dtype=dtype),
        "seqlens": torch.ones(BATCH, dtype=torch.int32),
    }
    if paged:
        given["block_table"] = torch.zeros(BATCH, PAGES_EACH, dtype=torch.int32)
    return CacheTensors(**{**given, **changes})


def call(paged: bool = False, layout: str = "bshd", **changes: Any) -> CacheCall:
    tensors = made(paged=paged, **changes)
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2) for x in tensors[:3])
        tensors = tensors._replace(q=q, k=k, v=v)
    return CacheCall.of(tensors, CacheOptions(layout=layout), None)


@pytest.mark.parametrize(
    ("causal", "window", "left"),
    [(True, None, None), (False, None, None), (True, 1, 0), (True, 7, 6), (True, (6, None), 6),
     (True, (6, 0), 6)],
)  # fmt: skip
def test_a_window_counts_the_diagonal_and_its_left_side_does_not(
    causal: bool, window: Any, left: int | None
) -> None:
    options = CacheOptions.of(causal, window, 2.0, "bhsd")
    assert options == CacheOptions(causal, left, 2.0, "bhsd")


def test_a_window_without_a_mask_is_refused() -> None:
    with pytest.raises(TunefaError, match="so give causal=True"):
        CacheOptions.of(False, (6, None), None, "bshd")


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_heads_come_first_whatever_the_layout(layout: str) -> None:
    for paged, cache in ((False, (BATCH, HEADS_KV, KEYS)), (True, (PAGES, HEADS_KV, PAGE))):
        found = call(paged, layout)
        assert found.q.shape == (BATCH, HEADS, ROWS, DIM)
        assert (found.k.shape, found.v.shape) == ((*cache, DIM), (*cache, DIM_V))
        assert found.scale == DIM**-0.5
        out = (BATCH, ROWS, HEADS, DIM_V) if layout == "bshd" else (BATCH, HEADS, ROWS, DIM_V)
        assert found.new_out().shape == out and found.new_out().is_contiguous()
        assert found.new_lse().shape == (BATCH, HEADS, ROWS)


def test_the_lse_is_in_fp32_but_for_fp64() -> None:
    assert call().new_lse().dtype == torch.float32
    assert call(dtype=torch.float64).new_lse().dtype == torch.float64


def test_pages_count_by_the_row_of_the_table() -> None:
    plain, paged = call(), call(paged=True)
    assert (plain.page_size, plain.most_keys) == (None, KEYS)
    assert (paged.page_size, paged.most_keys) == (PAGE, PAGES_EACH * PAGE)
    text = "decode_b3_h4_kv2_q2_k{}_d64_dv32_bf16_causal"
    assert str(plain.workload()) == text.format(40)
    assert str(paged.workload()) == text.format(48) + "_page16"
    sinks = CacheCall.of(made(sinks=torch.zeros(HEADS)), CacheOptions(False, None, 3.0), None)
    found = sinks.workload()
    assert (found.causal, found.softcap, found.sinks, found.varlen) == (False, True, True, False)
    with pytest.raises(TunefaError, match="it serves bf16 and fp16"):
        call(dtype=torch.float32).workload()


@pytest.mark.parametrize(
    "changes",
    [
        {"q": torch.zeros(BATCH, 0, HEADS, DIM).bfloat16()},
        {"v": torch.zeros(BATCH, KEYS, HEADS_KV, 0).bfloat16()},
        {name: torch.zeros(BATCH, 0, HEADS_KV, DIM).bfloat16() for name in "kv"},
        {"paged": True, "block_table": torch.zeros(BATCH, 0).int()},
    ],
)
def test_without_rows_or_keys_a_call_is_empty(changes: dict[str, Any]) -> None:
    assert call(**changes).empty and not call(paged=changes.get("paged", False)).empty


META = torch.device("meta")
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"q": [1.0]}, "q is a list: give a torch.Tensor, (batch, seqlen, heads, head_dim)"),
    ({"k": torch.zeros(3, 2, 64).bfloat16()}, "k_cache has 3 axes, (3, 2, 64): give 4, (batch, "),
    ({"paged": True, "v": torch.zeros(1).bfloat16()}, "give 4, (pages, page_size, heads, head_dim"),
    (
        {"q": torch.zeros(3, 2, 4, 0).bfloat16(), "k": torch.zeros(3, 40, 2, 0).bfloat16()},
        "head_dim of q is 0: give 1 or more",
    ),
    (
        {"q": torch.zeros(BATCH, ROWS, HEADS, DIM).to(torch.float8_e4m3fn)},
        "q is torch.float8_e4m3fn: attention over a cache takes bf16 and fp16",
    ),
    ({"v": torch.zeros(3, 40, 4, 64).bfloat16()}, "heads of k_cache is 2 and of v_cache 4"),
    ({"v": torch.zeros(3, 8, 2, 64).bfloat16()}, "seqlen of k_cache is 40 and of v_cache 8"),
    ({"paged": True, "v": torch.zeros(11, 8, 2, 64).bfloat16()}, "page_size of k_cache is 16 and"),
    ({"paged": True, "v": torch.zeros(9, 16, 2, 64).bfloat16()}, "pages of k_cache is 11 and of"),
    ({name: torch.zeros(3, 40, 0, 64).bfloat16() for name in "kv"}, "a multiple of the 0 of the"),
    ({"seqlens": torch.ones(6).int()[::2]}, "seqlens has strides (2,): make it contiguous"),
    ({"seqlens": torch.ones(3, device=META).int()}, "seqlens is on meta and q is on cpu: move one"),
    ({"sinks": [0.0] * 4}, "sinks is a list: give (heads,), here (4,), in torch.float32"),
    ({"sinks": torch.zeros(4).double()}, "sinks is (4,), torch.float64: give (heads,)"),
    ({"sinks": torch.zeros(4, device=META)}, "sinks is on meta"),
    ({"paged": True, "block_table": [[0]]}, "block_table is a list: give (batch, pages of the"),
    ({"paged": True, "block_table": torch.zeros(3).int()}, "block_table is (3,), torch.int32"),
    ({"paged": True, "block_table": torch.zeros(5, 3).int().T}, "make its rows contiguous"),
    ({"paged": True, "block_table": torch.zeros(3, 2, device=META).int()}, "block_table is on met"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_tensors_say_what_to_give(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TunefaError) as caught:
        call(**changes)
    assert message in str(caught.value)


def test_the_output_must_be_as_the_call_makes_it() -> None:
    own = call()
    check_out(own, None)
    check_out(own, own.new_out())
    check_out(own, torch.empty(BATCH, ROWS, HEADS, 2 * DIM_V).bfloat16()[..., ::2])
    wrong: list[tuple[Any, str]] = [
        ([], "out is a list: give a torch.Tensor, or None"),
        (own.new_out().float(), r"torch.float32: give \(3, 2, 4, 32\) in torch.bfloat16"),
        (own.new_out().transpose(1, 2), r"out is \(3, 4, 2, 32\), torch.bfloat16: give"),
        (own.new_out().to(META), "out is on meta and q is on cpu: move one"),
    ]
    for out, message in wrong:
        with pytest.raises(TunefaError, match=message):
            check_out(own, out)


def unaligned(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, strides and dtype that begins 2 bytes beyond 16."""
    return tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape)


def wider(tensor: Tensor) -> Tensor:
    """A tensor whose strides alone are others."""
    return tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])[..., : tensor.shape[-1]]


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("change", [unaligned, wider, lambda x: x.half(), lambda x: x[:, :-1]])
def test_another_form_of_a_tensor_is_another_key(
    name: str, change: Callable[[Tensor], Tensor]
) -> None:
    own = made()
    other = own._replace(**{name: change(getattr(own, name))})
    assert key(own, CacheOptions(), None) != key(other, CacheOptions(), None)


def test_it_says_which_tensor_is_not_aligned() -> None:
    """The one that is not may be copied, and so be aligned when a kernel reads it."""
    own, out = made(), call().new_out()
    changed = [own._replace(**{name: unaligned(getattr(own, name))}) for name in "qkv"]
    keys = [key(each, CacheOptions(), out) for each in (own, *changed)]
    assert len({*keys, key(own, CacheOptions(), unaligned(out))}) == 5


def test_what_a_plan_depends_on_is_in_the_key() -> None:
    own, paged, out = made(), made(paged=True), call().new_out()
    wide = paged._replace(block_table=torch.zeros(BATCH, 4).int())
    keys = [key(each, CacheOptions(), None) for each in (own, paged, wide)]
    keys += [key(own._replace(sinks=torch.zeros(HEADS)), CacheOptions(), None)]
    keys += [key(own, CacheOptions(), each) for each in (out, unaligned(out), wider(out))]
    options = [CacheOptions(False), CacheOptions(window_left=3), CacheOptions(softcap=2.0)]
    keys += [key(own, each, None) for each in options]
    assert len(set(keys)) == len(keys)
    same = CacheTensors(*(torch.full_like(x, 2) for x in own if x is not None))
    assert key(same, CacheOptions(), None) == keys[0]


def latent(**changes: Any) -> CacheCall:
    """A call with rows of 576 elements, of which the first 512 are the values."""
    cache = torch.zeros(2, 40, 1, 576, dtype=torch.bfloat16)
    given = {"q": torch.zeros(2, 1, 16, 576, dtype=torch.bfloat16), "k": cache,
             "v": cache[..., :512], "seqlens": torch.zeros(2, dtype=torch.int32)}  # fmt: skip
    return CacheCall.of(CacheTensors(**{**given, **changes}), CacheOptions(), None)


def test_values_that_are_columns_of_the_keys_make_latent_attention() -> None:
    text = "decode_b2_h16_kv1_q1_k40_d576_dv512_bf16_causal_mla"
    assert str(latent().workload()) == text
    with pytest.raises(TunefaError, match="head_dim 576 is above 256"):
        latent(v=torch.zeros(2, 40, 1, 512, dtype=torch.bfloat16)).workload()
    rows = torch.zeros(2, 40, 576, dtype=torch.bfloat16)  # strides of the axis of heads differ
    assert latent(k=rows.unsqueeze(2), v=rows[..., :512].unsqueeze(2)).workload().mla
    narrow = torch.zeros(2, 40, 1, 128, dtype=torch.bfloat16)
    q = torch.zeros(2, 1, 16, 128, dtype=torch.bfloat16)
    assert not latent(q=q, k=narrow, v=narrow[..., :64]).workload().mla


def test_a_plan_of_latent_attention_serves_no_values_of_their_own() -> None:
    """Both calls have the same shapes and strides."""
    cache = torch.zeros(2, 2, 40, 1, 576, dtype=torch.bfloat16)
    q, seqlens = torch.zeros(2, 1, 16, 576), torch.zeros(2, dtype=torch.int32)
    keys = [
        key(CacheTensors(q, cache[0], cache[i][..., :512], seqlens), CacheOptions(), None)
        for i in range(2)
    ]
    assert keys[0] != keys[1]
