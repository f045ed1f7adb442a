from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tunefa.errors import TunefaError
from tunefa.runtime.call import Call, Options, Tensors, heads_first
from tunefa.spec.workload import Workload


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


Q = tensor(2, 8, 32, 64)
KV = tensor(2, 16, 8, 64)
GOOD: dict[str, Any] = {
    "q": Q,
    "k": KV,
    "v": KV,
    "causal": True,
    "window": None,
    "scale": None,
    "layout": "bshd",
    "softcap": None,
}


def call(**changes: Any) -> Call:
    given = {**GOOD, **changes}
    named = ("causal", "window", "layout", "softcap")
    options = Options.of(**{name: given.pop(name) for name in named})
    scale, descales = given.pop("scale"), given.pop("descales", ())
    return Call.of(Tensors(**given, descales=descales), options, scale)


def test_views_shapes_and_workload() -> None:
    made = call(v=tensor(2, 16, 8, 96))
    assert made.q.shape == (2, 32, 8, 64) and made.q.data_ptr() == Q.data_ptr()
    assert (made.out_shape, made.group, made.scale) == ((2, 32, 8, 96), 4, 0.125)
    assert made.new_out().shape == (2, 8, 32, 96) and made.new_out().is_contiguous()
    assert (made.new_lse().shape, made.new_lse().dtype) == ((2, 32, 8), torch.float32)
    assert made.workload() == Workload.parse("b2_h32_kv8_q8_k16_d64_dv96_bf16_causal")


def test_layouts_name_the_same_problem() -> None:
    heads = {"q": Q.transpose(1, 2), "k": KV.transpose(1, 2), "v": KV.transpose(1, 2)}
    other = call(layout="bhsd", causal=False, scale=2, **heads)
    assert other.workload() == call(causal=False).workload()
    assert other.new_out().shape == (2, 32, 8, 64)
    assert other.scale == 2.0 and type(other.scale) is float
    assert heads_first(heads_first(Q, "bshd"), "bshd").stride() == Q.stride()


def test_fast_sums_are_another_workload_and_for_e4m3_only() -> None:
    q, kv = (x.to(torch.float8_e4m3fn) for x in (Q, KV))
    options = [Options.of(True, None, accumulate=each) for each in ("precise", "fast")]
    precise, fast = (Call.of(Tensors(q, kv, kv), each, None) for each in options)
    assert str(fast.workload()) == f"{precise.workload()}_fast"
    with pytest.raises(TunefaError, match=r"it is for torch.* only"):
        Call.of(Tensors(Q, KV, KV), options[1], None)
    with pytest.raises(TunefaError, match=r"unknown accumulate .exact.*precise"):
        Call.of(Tensors(q, kv, kv), options[0]._replace(accumulate="exact"), None)


def test_a_window_that_leaves_out_no_key_is_none_to_lookup() -> None:
    assert str(call(window=15).workload()).endswith("_causal_w15")
    assert call(window=16).workload() == call(window=10**9).workload() == call().workload()


@pytest.mark.parametrize(
    ("causal", "window", "text"),
    [
        (False, (None, None), "full"),
        (False, (None, 0), "causal"),
        (True, (None, None), "causal"),
        (True, (3, 5), "causal_w4"),  # as FlashAttention has it
        (False, (3, 0), "causal_w4"),
        (False, (0, 0), "causal_w1"),
        (False, (3, None), "full_w4"),
        (False, (3, 2), "full_w4_a2"),
        (False, (15, 2), "full_a2"),  # of 16 keys
        (False, (10**9, 7), "full"),  # of 8 queries
    ],
)
def test_windows_of_two_sides(causal: bool, window: Any, text: str) -> None:
    made = call(causal=causal, window=window)
    assert made.workload() == Workload.parse(f"b2_h32_kv8_q8_k16_d64_bf16_{text}")
    assert Call.of(Tensors(Q, KV, KV), made.options, None).workload() == made.workload()


def test_a_number_is_a_window_of_a_causal_mask() -> None:
    assert call(window=4).options == call(causal=False, window=(3, 0)).options


def test_a_soft_cap_is_known_to_lookup_but_not_its_value() -> None:
    assert str(call(softcap=50).workload()).endswith("_causal_softcap")
    assert call(softcap=50).workload() == call(softcap=30.5).workload() != call().workload()
    assert call(softcap=30.5).options.softcap == 30.5


E4M3 = {name: GOOD[name].to(torch.float8_e4m3fn) for name in "qkv"}


def test_e4m3_has_its_output_in_bf16() -> None:
    made = call(**E4M3)
    assert str(made.workload()) == "fwd_b2_h32_kv8_q8_k16_d64_e4m3_causal"
    assert made.new_out().dtype == torch.bfloat16 and made.new_lse().dtype == torch.float32


def test_descales_are_contiguous_and_empty_where_not_given() -> None:
    assert call().descales == () and call(descales=(None,) * 3).descales == ()
    assert [each.numel() for each in call(**E4M3).descales] == [0, 0, 0]
    one = torch.tensor(0.5).expand(2, 8)
    q, k, v = call(**E4M3, descales=(one, None, one)).descales
    assert torch.equal(q, one) and q.is_contiguous() and k.numel() == 0 and torch.equal(v, one)


@pytest.mark.parametrize(
    ("descale", "message"),
    [
        (0.5, r"k_descale is a float: give an fp32 torch.Tensor, \(batch, heads_kv\), or None"),
        (
            tensor(8, dtype=torch.float32),
            r"k_descale is \(8,\), .* here \(2, 8\), in torch.float32",
        ),
        (tensor(2, 32, dtype=torch.float32), r"k_descale is \(2, 32\), .* here \(2, 8\)"),
        (tensor(2, 8), r"k_descale is \(2, 8\), torch.bfloat16: give .* in torch.float32"),
        (tensor(2, 8, dtype=torch.float32, device="meta"), r"k_descale is on meta and q is on cpu"),
    ],
)
def test_descales_that_do_not_fit(descale: Any, message: str) -> None:
    with pytest.raises(TunefaError, match=message):
        call(**E4M3, descales=(None, descale, None))


def test_descales_are_for_e4m3_only() -> None:
    with pytest.raises(TunefaError, match=r"q is torch.bfloat16 and has a descale: give descales"):
        call(descales=(torch.ones(2, 8), None, None))


def test_fp64_has_its_lse_in_fp64() -> None:
    made = call(q=Q.double(), k=KV.double(), v=KV.double())
    assert made.new_lse().dtype == torch.float64


@pytest.mark.parametrize(
    ("changes", "empty"),
    [
        ({}, False),
        ({"q": tensor(2, 0, 32, 64)}, True),
        ({"k": tensor(2, 0, 8, 64), "v": tensor(2, 0, 8, 64)}, True),
        ({"q": Q[:0], "k": KV[:0], "v": KV[:0]}, True),
        ({"q": Q[:, :, :0]}, True),
    ],
)
def test_what_is_empty(changes: dict[str, Any], empty: bool) -> None:
    assert call(**changes).empty == empty


AXES = "layout 'bshd' is (batch, seqlen, heads, head_dim)"
ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"layout": "bshdx"}, "unknown layout 'bshdx': did you mean bshd? (known: bshd, bhsd)"),
    ({"layout": None}, "unknown layout 'None'"),
    ({"causal": "yes"}, "causal is 'yes': give True or False"),
    (
        {"window": 0},
        "window is 0: give the number of keys that a query sees up to the diagonal, 1 to 2**62; or "
        "(left, right), the numbers of keys before and beyond it, 0 to 2**62, None for all; "
        "or None",
    ),
    ({"window": -1}, "window is -1: give the number of keys"),
    ({"window": 4.0}, "window is 4.0: give the number of keys"),
    ({"window": True}, "window is True: give the number of keys"),
    ({"window": [4, 0]}, "window is [4, 0]: give the number of keys"),
    ({"window": (4,)}, "window is (4,): give the number of keys"),
    ({"window": (4, -1)}, "window is (4, -1): give the number of keys"),
    ({"window": (4.0, 0)}, "window is (4.0, 0): give the number of keys"),
    (
        {"window": 4, "causal": False},
        "window is 4 and causal is False: a number counts the keys up to the diagonal, so give "
        "causal=True, or a pair (left, right)",
    ),
    ({"softcap": 0.0}, "softcap is 0.0: give a positive number, or None for scores as they are"),
    ({"softcap": -30}, "softcap is -30: give a positive number"),
    ({"softcap": math.inf}, "softcap is inf: give a positive number"),
    ({"softcap": math.nan}, "softcap is nan: give a positive number"),
    ({"softcap": "50"}, "softcap is '50': give a positive number"),
    ({"k": [1.0]}, "k is a list: give a torch.Tensor, (batch, seqlen, heads, head_dim)"),
    ({"v": KV[0]}, "v has 3 axes, (16, 8, 64): give 4, (batch, seqlen, heads, head_dim)"),
    ({"q": Q.long()}, "unknown dtype of q, 'torch.int64'"),
    ({"k": KV.half()}, "k is torch.float16 and q is torch.bfloat16: convert one, such as k.to"),
    ({"v": KV.to("meta")}, "v is on meta and q is on cpu: move one, such as v.to(q.device)"),
    ({"q": Q[:1]}, f"batch of q is 1 and of k 2: make them equal ({AXES})"),
    ({"v": KV[:1]}, "batch of k is 2 and of v 1"),
    ({"v": KV[:, :, :4]}, "heads of k is 8 and of v 4"),
    ({"v": KV[:, :4]}, "seqlen of k is 16 and of v 4"),
    ({"k": KV[..., :32]}, "head_dim of q is 64 and of k 32"),
    (
        {"q": Q[:, :, :20]},
        "q has 20 heads, which is not a multiple of the 8 of k and v: each KV head serves the same "
        f"number of query heads ({AXES})",
    ),
    ({"k": KV[:, :, :0], "v": KV[:, :, :0]}, "q has 32 heads, which is not a multiple of the 0"),
    ({"q": Q[..., :0], "k": KV[..., :0]}, "head_dim of q is 0: give 1 or more"),
    ({"scale": "0.1"}, "scale is '0.1': give a finite number, or None for head_dim ** -0.5"),
    ({"scale": float("nan")}, "scale is nan: give a finite number"),
    ({"scale": float("inf")}, "scale is inf: give a finite number"),
    ({"scale": torch.ones(())}, "scale is tensor(1.): give a finite number"),
]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(True, -1), "window_left is -1: give a number of keys from 0 to 2"),
        (Options(False, window_right=0), "window_right is 0: give a number of keys from 1 to"),
        (
            Options(True, window_right=4),
            "window_right is 4 and causal is True, which hides every key beyond the diagonal",
        ),
    ],
)
def test_options_that_flash_attention_does_not_make(options: Options, says: str) -> None:
    with pytest.raises(TunefaError) as error:
        options.check()
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(("changes", "says"), ERRORS, ids=[says[:40] for _, says in ERRORS])
def test_one_sentence_says_what_does_not_fit(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TunefaError) as error:
        call(**changes)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_the_other_layout_is_named_where_it_is_used() -> None:
    with pytest.raises(TunefaError, match=r"'bhsd' is \(batch, heads, seqlen, head_dim\)"):
        call(layout="bhsd", q=Q[:1])


def test_a_head_dim_that_no_kernel_has_is_a_call_but_no_workload() -> None:
    small = call(q=Q[..., :8], k=KV[..., :8], v=KV[..., :8])
    with pytest.raises(TunefaError, match="head_dim 8 is below 16"):
        small.workload()
    large = call(q=tensor(2, 8, 32, 300), k=tensor(2, 16, 8, 300))
    with pytest.raises(TunefaError, match="head_dim 300 is above 256"):
        large.workload()
