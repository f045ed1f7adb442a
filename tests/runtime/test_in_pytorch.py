"""tunefa/runtime/in_pytorch.py: what computes the calls that no kernel serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tunefa
from tests.support.op_calls import close, inputs, sdpa
from tests.support.packed_calls import call, flat, tensors
from tunefa.errors import TunefaError
from tunefa.runtime import in_pytorch
from tunefa.runtime.call import Call, Options, Tensors

FLASH = "_scaled_dot_product_flash_attention_for_cpu"
LONG = (4, 2, 700, 700, 16, 16)


def ops_of(run: Callable[[], Any]) -> set[str]:
    """The names of PyTorch's ops that it runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return {event.name.removeprefix("aten::") for event in profile.events()}


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"causal": True, "window": 9}, {"window": (3, 4)}, {"scale": -1.0}],
)
def test_the_cpu_s_kernel_computes_a_call_and_its_gradients(options: dict[str, Any]) -> None:
    q, k, v = inputs(LONG)
    attend: Any = tunefa.flash_attention
    ran = ops_of(lambda: attend(q, k, v, **options).sum().backward())
    assert {FLASH, f"{FLASH}_backward"} <= ran and "bmm" not in ran


@pytest.mark.parametrize("options", [{"softcap": 5.0}, {"softcap": 5.0, "causal": True}])
def test_a_soft_cap_is_computed_by_the_formula(options: dict[str, Any]) -> None:
    q, k, v = inputs(LONG)
    attend: Any = tunefa.flash_attention
    ran = ops_of(lambda: attend(q, k, v, **options))
    assert FLASH not in ran and "bmm" in ran


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck(causal: bool) -> None:
    x = inputs((4, 2, 3, 5, 4, 6), dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda q, k, v: tunefa.flash_attention(q, k, v, causal=causal), x
    )


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(257, 257), (320, 64), (64, 300), (512, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_head_dims_that_no_kernel_serves(
    head_dim: int, head_dim_v: int, dtype: torch.dtype
) -> None:
    q, k, v = inputs((4, 2, 7, 12, head_dim, head_dim_v))
    right = sdpa(q, k, v, True)
    x = tuple(each.detach().to(dtype).requires_grad_() for each in (q, k, v))
    out = tunefa.flash_attention(*x, causal=True)
    assert out.dtype == dtype
    if dtype == torch.bfloat16:
        assert float((out - right).detach().norm() / right.detach().norm()) < 8e-3
        return
    torch.testing.assert_close(out.float(), right)
    grads = torch.autograd.grad(out.float().sum(), x)
    close(tuple(each.float() for each in grads), torch.autograd.grad(right.sum(), (q, k, v)))


@pytest.mark.parametrize(("name", "place"), [("max_seqlen_q", 0), ("max_seqlen_k", 1)])
def test_a_max_seqlen_that_is_too_small_is_refused_where_lengths_are_read(
    name: str, place: int
) -> None:
    made, longest = tensors(5, 0, 9, 2), [9, 9]
    assert torch.equal(tunefa.flash_attention_varlen(*flat(made), 9, 9), call(made))
    longest[place] = 8
    with pytest.raises(
        TunefaError, match=f"{name} is at most 8 and a sequence is 9 long: give the"
    ):
        tunefa.flash_attention_varlen(*flat(made), longest[0], longest[1])
    made.q.requires_grad_()
    with pytest.raises(TunefaError, match=f"{name} is at most 8 and a sequence is 9 long"):
        tunefa.flash_attention_varlen(*flat(made), longest[0], longest[1])


def test_scaled_dot_product_attention_only_where_it_is_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CPU stands in for a CUDA device; rows that see no key are left to tunefa."""
    q, k, v = (x.detach() for x in inputs((4, 2, 12, 7, 8, 8)))
    call = Call.of(Tensors(q, k, v), Options(True), None)
    assert not in_pytorch._is_fused(call)
    monkeypatch.setattr(in_pytorch, "_is_fused", lambda inputs: True)
    out = in_pytorch.output(call).transpose(1, 2)
    torch.testing.assert_close(out, sdpa(q, k, v, True))
    assert not out[:, :5].any()
