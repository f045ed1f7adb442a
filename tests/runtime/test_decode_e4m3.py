"""tunefa/runtime/decode.py: caches in e4m3, on the CPU, where PyTorch computes attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tunefa
from tests.support.cache_calls import BATCH, HEAD_DIM, HEADS_KV, KEYS, expected, in_pages, made
from tunefa.errors import TunefaError


def in_e4m3(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The call in fp16 with a cache in e4m3, and the same with the numbers that it stands for."""
    factors = 0.5 + torch.rand(2, BATCH, HEADS_KV)
    stored = dict(given, q=given["q"].half(), k_descale=factors[0], v_descale=factors[1])
    meant = dict(given, q=given["q"].half().double())
    for name, factor in (("k_cache", factors[0]), ("v_cache", factors[1])):
        stored[name] = given[name].to(torch.float8_e4m3fn)
        meant[name] = stored[name].double() * factor.double()[:, None, :, None]
    return stored, meant


@pytest.mark.parametrize("page_size", [None, 8])
def test_a_cache_in_e4m3_stands_for_its_numbers_times_the_factors(page_size: int | None) -> None:
    stored, meant = in_e4m3(made(2))
    out, lse = expected(meant)
    if page_size:
        paged = in_pages(meant, page_size)
        table = paged["block_table"]
        for name in ("k_cache", "v_cache"):
            pages = torch.full(paged[name].shape, math.nan).to(torch.float8_e4m3fn)
            for sequence, keys in enumerate(stored["seqlens"].tolist()):
                for key in range(keys):
                    number = int(table[sequence, key // page_size])
                    pages[number, key % page_size] = stored[name][sequence, key]
            stored[name] = pages
        stored["block_table"] = table
    found, found_lse = tunefa.decode_attention(**stored, return_lse=True)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.double(), out, atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(found_lse.double(), lse, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("shape", [(), (1,), (HEADS_KV,), (BATCH, 1)])
def test_factors_broadcast(shape: tuple[int, ...]) -> None:
    stored, _ = in_e4m3(made())
    factor = torch.full(shape, 0.75)
    whole = torch.full((BATCH, HEADS_KV), 0.75)
    few = tunefa.decode_attention(**{**stored, "k_descale": factor, "v_descale": factor})
    all_of_them = tunefa.decode_attention(**{**stored, "k_descale": whole, "v_descale": whole})
    assert torch.equal(few, all_of_them)


@pytest.mark.parametrize("page_size", [None, 8])
def test_new_keys_are_rounded_to_e4m3(page_size: int | None) -> None:
    stored, _ = in_e4m3(made())
    stored["seqlens"] = torch.tensor([5, 7, 0], dtype=torch.int32)
    if page_size:
        pages = KEYS // page_size
        for name in ("k_cache", "v_cache"):
            stored[name] = stored[name].reshape(BATCH * pages, page_size, HEADS_KV, HEAD_DIM)
        stored["block_table"] = torch.arange(BATCH * pages, dtype=torch.int32).view(BATCH, pages)
    new = 1000 * torch.randn(2, BATCH, 1, HEADS_KV, HEAD_DIM).half()
    new[..., 0] = 3.0
    tunefa.decode_attention(**stored, k=new[0], v=new[1])
    for name, given in (("k", new[0]), ("v", new[1])):
        cache = stored[f"{name}_cache"].view(BATCH, KEYS, HEADS_KV, HEAD_DIM)
        factor = stored[f"{name}_descale"][..., None]
        for sequence, key in enumerate((5, 7, 0)):
            right = (given[sequence, 0].float() / factor[sequence]).clamp(-448, 448)
            right = right.to(torch.float8_e4m3fn)
            assert torch.equal(cache[sequence, key].view(torch.uint8), right.view(torch.uint8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_descale": None}, "k_descale is missing: give k_descale and v_descale"),
        ({"v_descale": 0.5}, "v_descale is a float: give a torch.Tensor"),
        ({"v_descale": torch.ones(4)}, "give (batch, heads_kv), here (3, 2), in torch.float32"),
        ({"k_descale": torch.ones(3, 2).double()}, "in torch.float32"),
        ({"v_cache": torch.zeros(3, 40, 2, 16).half()}, "make them equal"),
        ({"q": torch.zeros(3, 1, 4, 16)}, "k_cache is torch.float8_e4m3fn and q is torch.float32"),
    ],
)
def test_wrong_factors_say_what_to_give(changes: dict[str, Any], message: str) -> None:
    stored, _ = in_e4m3(made())
    with pytest.raises(TunefaError) as caught:
        tunefa.decode_attention(**{**stored, **changes})
    assert message in str(caught.value)


def test_factors_go_with_e4m3() -> None:
    with pytest.raises(TunefaError, match=r"goes with a cache in torch\.float8_e4m3fn"):
        tunefa.decode_attention(**made(), k_descale=torch.ones(BATCH, HEADS_KV))
