"""tunefa/runtime/decode.py: wrong arguments, transforms, modes and frozen processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.cache_calls import BATCH, HEAD_DIM, HEADS, HEADS_KV, expected, made
from tunefa.errors import TunefaError


def test_a_pair_without_limits_is_no_window() -> None:
    given = made(3)
    pair = tunefa.decode_attention(**given, causal=False, window=(None, None))
    assert torch.equal(pair, tunefa.decode_attention(**given, causal=False))


@pytest.mark.parametrize("wrong", [{"softcap": -1.0}, {"out": torch.zeros(1)}, {"scale": 2j}])
def test_wrong_arguments_leave_the_cache_as_it_was(wrong: dict[str, Any]) -> None:
    given = made()
    new = torch.randn(2, BATCH, 1, HEADS_KV, HEAD_DIM).double()
    given["seqlens"] = torch.tensor([5, 7, 1], dtype=torch.int32)
    before = given["k_cache"].clone()
    with pytest.raises(TunefaError):
        tunefa.decode_attention(**given, **wrong, k=new[0], v=new[1])
    torch.testing.assert_close(given["k_cache"], before, equal_nan=True, rtol=0, atol=0)


def test_new_keys_of_a_wrong_form_are_named() -> None:
    given = made()
    for wrong in ([1.0], torch.zeros(3, 2)):
        with pytest.raises(TunefaError, match=r"^k "):
            tunefa.decode_attention(**given, k=wrong, v=wrong)  # type: ignore[arg-type]
    meta = torch.zeros(BATCH, 1, HEADS_KV, HEAD_DIM, device="meta").double()
    with pytest.raises(TunefaError, match="k is on meta and q is on cpu"):
        tunefa.decode_attention(**given, k=meta, v=meta)


def test_a_negative_length_is_none_for_new_keys_too() -> None:
    given = made()
    given["seqlens"] = torch.tensor([-3, 4, 4], dtype=torch.int32)
    new = torch.randn(2, BATCH, 1, HEADS_KV, HEAD_DIM).double()
    last = given["k_cache"][0, -1].clone()
    tunefa.decode_attention(**given, k=new[0], v=new[1])
    torch.testing.assert_close(given["k_cache"][0, -1], last, rtol=0, atol=0)
    torch.testing.assert_close(given["k_cache"][0, 0], new[0, 0, 0])


def test_a_frozen_process_computes_on_the_cpu(fresh: Any, tmp_path: Any) -> None:
    from tests.support.sample_records import measured
    from tunefa.store import results

    path = tmp_path / "lock.yaml"
    results.write(path, [measured()])
    fresh.planner.freeze.to(path)
    given = made()
    out, _ = expected(given)
    torch.testing.assert_close(tunefa.decode_attention(**given), out)


def test_meta_and_fake_tensors_have_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    given = {name: x.to("meta") for name, x in made(2).items()}
    out, lse = tunefa.decode_attention(**given, return_lse=True)
    assert out.is_meta and out.shape == (BATCH, 2, HEADS, HEAD_DIM)
    assert lse.shape == (BATCH, HEADS, 2)
    real = made(2)
    with FakeTensorMode() as mode:
        fake: dict[str, Any] = {name: mode.from_tensor(x) for name, x in real.items()}
        assert tunefa.decode_attention(**fake).shape == (BATCH, 2, HEADS, HEAD_DIM)


def test_transforms_are_refused_by_name() -> None:
    given = made()

    def attend(q: Tensor) -> Tensor:
        found: Tensor = tunefa.decode_attention(**{**given, "q": q})
        return found

    with pytest.raises(TunefaError, match=r"no rule for torch\.func"):
        torch.func.vmap(attend)(torch.randn(3, BATCH, 1, HEADS, HEAD_DIM).double())


def test_autocast_casts_the_queries() -> None:
    given = {name: x.bfloat16() if x.is_floating_point() else x for name, x in made().items()}
    right = tunefa.decode_attention(**given)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tunefa.decode_attention(**{**given, "q": given["q"].float()}), right)


def test_compiled_calls_check_out() -> None:
    given = made()
    compiled: Any = torch.compile(tunefa.decode_attention, backend="eager")
    with pytest.raises(Exception, match=r"out is \(5,\)"):
        compiled(**given, out=torch.zeros(5).double())


def test_an_unknown_parameter_is_named() -> None:
    wrong: dict[str, Any] = {"block_tabel": None}
    with pytest.raises(TunefaError, match="block_table"):
        tunefa.decode_attention(**made(), **wrong)


@pytest.mark.parametrize("causal", [None, "no", 1])
def test_the_mask_is_a_bool(causal: Any) -> None:
    with pytest.raises(TunefaError, match=f"causal is {causal!r}: give True or False"):
        tunefa.decode_attention(**made(), causal=causal)


@pytest.mark.parametrize("paged", [False, True])
def test_new_keys_need_room(paged: bool) -> None:
    q, cache = torch.randn(1, 1, 2, 8), torch.randn(1, 6, 2, 8)
    table = torch.zeros(1, 1, dtype=torch.int32) if paged else None
    given = (q, cache, cache.clone(), torch.tensor([6], dtype=torch.int32), table)
    said = "sequence 0 has 6 keys, and the cache has room for 6: 1 new ones do not fit"
    with pytest.raises(TunefaError, match=said):
        tunefa.decode_attention(*given, k=q, v=q)


@pytest.mark.parametrize("page", [-1, 5])
@pytest.mark.parametrize("appends", [False, True])
def test_pages_are_those_of_the_cache(page: int, appends: bool) -> None:
    q, cache = torch.randn(1, 1, 2, 8), torch.randn(1, 6, 2, 8)
    table = torch.tensor([[page]], dtype=torch.int32)
    new: dict[str, Any] = {"k": q, "v": q} if appends else {}
    with pytest.raises(TunefaError, match=f"block_table has page {page}: give pages from 0 to 0"):
        tunefa.decode_attention(q, cache, cache, torch.tensor([3], dtype=torch.int32), table, **new)


def test_a_call_without_heads_or_keys_in_a_page() -> None:
    q, cache = torch.randn(1, 1, 0, 8), torch.randn(1, 6, 2, 8)
    lengths = torch.tensor([6], dtype=torch.int32)
    assert tunefa.decode_attention(q, cache, cache, lengths).shape == q.shape
    table = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(TunefaError, match="page_size of k_cache is 0"):
        tunefa.decode_attention(cache[:, :1], cache[:, :0], cache[:, :0], lengths, table)
