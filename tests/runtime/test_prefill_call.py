"""tunefa/runtime/prefill_call.py: the workload of a call, and the key of its plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import prefill_calls
from tunefa.errors import TunefaError
from tunefa.runtime.call import PACKED, Options
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors, check_out, key

HEADS, HEADS_KV, DIM, PAGE, COLUMNS = 4, 2, 32, 16, 10


def made(rows: int = 50, batch: int = 3, **changes: Any) -> PrefillTensors:
    """The tensors of a call, some of them changed."""
    sizes = HEADS, HEADS_KV, DIM, 20, PAGE, COLUMNS
    return prefill_calls.zeros(rows, batch, *sizes)._replace(**changes)


def options(**changes: Any) -> Options:
    return Options(causal=True, layout=PACKED, max_seqlen_q=40)._replace(**changes)


def test_the_workload_is_rounded_up() -> None:
    call = PrefillCall.of(made(), options(), None)
    assert str(call.workload()) == (
        "prefill_b4_h4_kv2_q64_k256_d32_bf16_causal_page16_varlen"
    )  # fmt: skip
    assert call.scale == DIM**-0.5 and call.most_keys == 160 and not call.empty
    shorter = PrefillCall.of(made(), options(max_seqlen_k=60), None).workload()
    assert (shorter.seqlen_q, shorter.seqlen_k) == (64, 64)
    longer = PrefillCall.of(made(), options(max_seqlen_k=6000), None).workload()
    assert longer.seqlen_k == 256, "pages have places for no more"


def test_the_mask_and_the_cache_are_in_the_workload() -> None:
    cache = torch.zeros(20, PAGE, HEADS_KV, DIM).to(torch.float8_e4m3fn)
    more: dict[str, Any] = {"k": cache, "v": cache, "sinks": torch.zeros(HEADS)}
    more |= {name: torch.ones(3, HEADS_KV) for name in ("k_descale", "v_descale")}
    asked = options(causal=False, window_left=9, window_right=4, softcap=2.0)
    workload = PrefillCall.of(made(**more), asked, None).workload()
    assert workload.band == (9, 4) and workload.softcap and workload.sinks and workload.e4m3cache
    wide = options(window_left=500, window_right=None)
    assert PrefillCall.of(made(), wide, None).workload().window_left is None, "it hides nothing"


def test_results_have_the_shapes_of_packed_sequences() -> None:
    call = PrefillCall.of(made(v=torch.zeros(20, PAGE, HEADS_KV, 48).bfloat16()), options(), None)
    assert call.new_out().shape == (50, HEADS, 48) and call.new_out().dtype == torch.bfloat16
    assert call.new_lse().shape == (HEADS, 50) and call.new_lse().dtype == torch.float32
    check_out(call, None)
    check_out(call, call.new_out())
    with pytest.raises(
        TunefaError, match=r"out is \(50, 4, 32\), torch.bfloat16: give \(50, 4, 48"
    ):
        check_out(call, torch.zeros(50, HEADS, DIM).bfloat16())


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 0},
        {name: torch.zeros(0, PAGE, HEADS_KV, DIM).bfloat16() for name in "kv"},
        {"block_table": torch.zeros(3, 0).int()},
        {"batch": 0},
    ],
)  # fmt: skip
def test_nothing_to_compute(changes: dict[str, Any]) -> None:
    assert PrefillCall.of(made(**changes), options(), None).empty


def test_calls_of_a_plan_differ_in_lengths_alone() -> None:
    own = key(made(), options(), None)
    assert own == key(made(rows=49), options(), None), "of 49 to 56 rows"
    assert own != key(made(rows=48), options(), None)
    filled = PrefillTensors(*(torch.full_like(x, 2) for x in made() if x is not None))
    assert own == key(filled, options(), None)
    assert own == key(made(), options(max_seqlen_q=33), None), "of 33 to 64 queries"
    assert own != key(made(), options(max_seqlen_q=32), None)
    many = made(batch=17)
    assert key(many, options(), None) == key(made(batch=20), options(), None)
    assert key(many, options(), None) != key(made(batch=21), options(), None)
    factors = torch.ones(20, 2)
    both = (made(batch=b, k_descale=factors[:b], v_descale=factors[:b]) for b in (17, 20))
    assert len({key(each, options(), None) for each in both}) == 1


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
    assert key(own, options(), None) != key(other, options(), None)


def test_what_a_plan_depends_on_is_in_the_key() -> None:
    own, out = made(), PrefillCall.of(made(), options(), None).new_out()
    keys = [key(own, options(), None)]
    changes: list[dict[str, Any]] = [
        {"sinks": torch.zeros(HEADS)},
        {"sinks": torch.zeros(HEADS - 1)},
        {"k_descale": torch.ones(3, 2)},
        {"k_descale": torch.ones(2, 2)},
        {"k_descale": torch.ones(1, 1).expand(3, 2)},
        {"seqlens_k": torch.zeros(4).int()},
        {"seqlens_k": torch.zeros(3)},
        {"cu_seqlens_q": torch.zeros(5).int()},
        {"block_table": torch.zeros(3, 40).int()[:, :COLUMNS]},
        {"block_table": torch.zeros(3, 40).int()},
        {"k": own.k[:9]},
    ]
    keys += [key(own._replace(**each), options(), None) for each in changes]
    keys += [key(own, options(), each) for each in (out, unaligned(out), wider(out), out[:-1])]
    others: list[dict[str, Any]] = [
        {"causal": False},
        {"window_left": 3},
        {"window_right": 3},
        {"softcap": 2.0},
        {"max_seqlen_k": 9},
    ]
    keys += [key(own, options(**each), None) for each in others]
    assert len(set(keys)) == len(keys)
    assert not math.isnan(hash(keys[0]))
