"""tunefa/runtime/api.py: flash_attention on the CPU, where PyTorch computes it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tunefa
from tests.support.dense_calls import heads_first, sdpa, tensors
from tunefa.errors import TunefaError

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_kv", [1, 2, 4])
def test_is_attention(heads_kv: int, causal: bool) -> None:
    q, k, v = tensors(heads_kv=heads_kv)
    out, lse = tunefa.flash_attention(q, k, v, causal=causal, return_lse=True)
    torch.testing.assert_close(out, sdpa(q, k, v, causal))
    assert (lse.shape, lse.dtype) == ((2, 4, 16), torch.float32)


@pytest.mark.parametrize("window", [1, 7, 23, 24, 1000])
def test_a_window_is_the_last_keys(window: int) -> None:
    q, k, v = tensors()
    out = tunefa.flash_attention(q, k, v, causal=True, window=window)
    torch.testing.assert_close(out, sdpa(q, k, v, True, None, window))


@pytest.mark.parametrize("window", [(0, 0), (3, 5), (None, 2), (7, None), (100, 100)])
def test_a_window_of_two_sides(window: tuple[int | None, int | None]) -> None:
    q, k, v = tensors()
    out = tunefa.flash_attention(q, k, v, window=window)
    left, right = (100 if side is None else side for side in window)
    diagonal = k.shape[1] - q.shape[1]
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    seen = seen.tril(diagonal + right).triu(diagonal - left)
    q, k, v = heads_first(q, k, v)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    torch.testing.assert_close(out, expected.transpose(1, 2))


def test_a_soft_cap_bounds_the_scores() -> None:
    q, k, v = tensors()
    out, lse = tunefa.flash_attention(q, k, v, scale=1.0, softcap=0.5, return_lse=True)
    heads = q.shape[2] // k.shape[2]
    scores = q.transpose(1, 2) @ k.transpose(1, 2).repeat_interleave(heads, 1).mT
    scores = 0.5 * torch.tanh(scores / 0.5)
    right = scores.softmax(-1) @ v.transpose(1, 2).repeat_interleave(heads, 1)
    torch.testing.assert_close(out, right.transpose(1, 2))
    torch.testing.assert_close(lse, scores.logsumexp(-1))


def test_layouts_are_equal() -> None:
    q, k, v = tensors()
    out, lse = tunefa.flash_attention(q, k, v, causal=True, return_lse=True)
    heads = heads_first(q, k, v)
    for q, k, v in (heads, tuple(x.contiguous() for x in heads)):
        other, other_lse = tunefa.flash_attention(
            q, k, v, causal=True, layout="bhsd", return_lse=True
        )
        assert other.is_contiguous()
        assert torch.equal(other.transpose(1, 2), out) and torch.equal(other_lse, lse)


@pytest.mark.parametrize("scale", [None, 0.5, 1, 0.0, -0.25])
def test_scales(scale: float | None) -> None:
    q, k, v = tensors()
    out = tunefa.flash_attention(q, k, v, scale=scale)
    torch.testing.assert_close(out, sdpa(q, k, v, False, scale))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_result_has_q_s_dtype(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in tensors())
    out, lse = tunefa.flash_attention(q, k, v, causal=True, return_lse=True)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = sdpa(q.double(), k.double(), v.double(), True)
    tolerance = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-12}[dtype]
    assert float((out.double() - exact).norm() / exact.norm()) < tolerance


def test_empty_tensors() -> None:
    q, k, v = tensors()
    out, lse = tunefa.flash_attention(q[:0], k[:0], v[:0], return_lse=True)
    assert (out.shape, lse.shape) == ((0, 16, 4, 32), (0, 4, 16))
    assert tunefa.flash_attention(q[:, :0], k, v, causal=True).shape == (2, 0, 4, 32)
    out, lse = tunefa.flash_attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert bool((out == 0).all()) and bool((lse == -math.inf).all())


def test_mistakes_are_one_sentence_with_and_without_autograd() -> None:
    q, k, v = tensors()
    with pytest.raises(TunefaError, match="unknown layout 'bsdh': did you mean bshd"):
        tunefa.flash_attention(q, k, v, layout="bsdh")  # type: ignore[call-overload]
    with pytest.raises(TunefaError, match="window is 4 and causal is False"):
        tunefa.flash_attention(q, k, v, window=4)
    with pytest.raises(TunefaError, match=r"k is a NoneType: give a torch\.Tensor"):
        tunefa.flash_attention(q, None, v)  # type: ignore[call-overload]
    for x in (q, q.requires_grad_()):
        with pytest.raises(TunefaError, match="head_dim of q is 32 and of k 16"):
            tunefa.flash_attention(x, k[..., :16], v)


@pytest.mark.parametrize("window", [10**30, (10**30, None), -5, True, "9", (1,), [1, 2]])
def test_windows_that_are_none(window: Any) -> None:
    q, k, v = tensors()
    with pytest.raises(TunefaError, match=r"window is .*: give the number of keys that a query"):
        tunefa.flash_attention(q, k, v, causal=True, window=window)


@pytest.mark.parametrize("layout", [[], None, "BSHD", 3, {}])
def test_layouts_that_are_none(layout: Any) -> None:
    q, k, v = tensors()
    with pytest.raises(TunefaError, match=r"unknown layout .*known: bshd, bhsd"):
        tunefa.flash_attention(q, k, v, layout=layout)


def test_tensors_that_are_not_dense() -> None:
    q, k, v = tensors()
    for wrong in (q.to_sparse(), torch.nested.nested_tensor(list(q), layout=torch.jagged)):
        with pytest.raises(TunefaError, match="q is "):
            tunefa.flash_attention(wrong, k, v)
    with pytest.raises(TunefaError, match=r"unknown dtype of q, 'torch\.complex64'"):
        tunefa.flash_attention(q.to(torch.complex64), k, v)


def test_other_devices_and_fake_tensors_have_shapes() -> None:
    q, k, v = (x.to("meta") for x in tensors())
    out, lse = tunefa.flash_attention(q, k, v, return_lse=True)
    assert (out.device.type, out.shape, lse.shape) == ("meta", q.shape, (2, 4, 16))
