from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.gradients import gradients
from tunefa.measure.reference import attention

SCALE = 0.3
SHAPES = [  # heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v
    (4, 4, 17, 17, 16, 16),
    (8, 2, 13, 29, 24, 40),
    (6, 1, 29, 13, 16, 8),
    (2, 2, 1, 33, 8, 8),
    (2, 1, 7, 1, 8, 8),
]
MASKS = [
    *((False, None, None), (True, None, None), (True, 0, None), (True, 2, None), (True, 11, None)),
    *((True, 99, None), (False, 2, None), (False, None, 2), (False, 0, 3), (False, 11, 1)),
    *((False, 99, 20), (False, 4, 100)),
]
"""Whether causal, and keys that a row sees before and beyond the diagonal."""


def inputs(
    heads: int, heads_kv: int, seqlen_q: int, seqlen_k: int, head_dim: int, head_dim_v: int
) -> tuple[Tensor, Tensor, Tensor]:
    """fp64 tensors of batch 2, stored with heads after seqlen."""
    generator = torch.Generator().manual_seed(seqlen_q)

    def normal(heads: int, seqlen: int, dim: int) -> Tensor:
        shape = (2, seqlen, heads, dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64).transpose(1, 2)

    return (
        normal(heads, seqlen_q, head_dim),
        normal(heads_kv, seqlen_k, head_dim),
        normal(heads_kv, seqlen_k, head_dim_v),
    )


def plainly(given: AttentionInputs) -> tuple[Tensor, Tensor]:
    """The definition, with every matrix written out."""
    q, k, v = given.q, given.k, given.v
    group = q.shape[1] // k.shape[1]
    scores = SCALE * q @ k.repeat_interleave(group, 1).transpose(2, 3)
    if given.softcap is not None:
        scores = given.softcap * torch.tanh(scores / given.softcap)
    diagonal = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    keys = torch.arange(k.shape[2])
    last = diagonal if given.causal else diagonal + (given.window_right or q.shape[2])
    if given.causal or given.window_right is not None:
        scores = scores.masked_fill(keys > last, -math.inf)
    if given.window_left is not None:
        scores = scores.masked_fill(keys < diagonal - given.window_left, -math.inf)
    p = torch.where(scores == -math.inf, 0.0, scores.exp())
    total = p.sum(-1)
    out = p @ v.repeat_interleave(group, 1) / total.clamp_min(1e-300)[..., None]
    return out, total.log()


@pytest.fixture(params=[2**25, 300], ids=["one block", "many blocks"], autouse=True)
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", {"cpu": request.param})


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize(("causal", "window_left", "window_right"), MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_definition(
    shape: tuple[int, ...],
    causal: bool,
    window_left: int | None,
    window_right: int | None,
    softcap: float | None,
) -> None:
    given = AttentionInputs(*inputs(*shape), causal, SCALE, window_left, window_right, softcap)
    out, lse = attention(given)
    right, right_lse = plainly(given)
    torch.testing.assert_close(out, right)
    torch.testing.assert_close(lse, right_lse)


def test_causal_is_bottom_right() -> None:
    q, k, v = inputs(4, 4, 13, 29, 16, 16)
    out, _ = attention(AttentionInputs(q, k, v, True, SCALE))
    from torch.nn.attention.bias import causal_lower_right  # imports torch._dynamo

    mask = causal_lower_right(13, 29)
    right = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=SCALE)
    torch.testing.assert_close(out, right)


def test_rows_without_a_key_give_0_and_minus_infinity() -> None:
    q, k, v = inputs(6, 1, 29, 13, 16, 8)
    out, lse = attention(AttentionInputs(q, k, v, True, SCALE))
    assert bool((out[:, :, :16] == 0).all()) and bool((lse[:, :, :16] == -math.inf).all())
    assert bool(lse[:, :, 16:].isfinite().all())


@pytest.mark.parametrize("window_right", [None, 2])
@pytest.mark.parametrize("window_left", [0, 5, 99, 399])
def test_a_window_costs_what_its_keys_do(
    monkeypatch: pytest.MonkeyPatch, window_left: int, window_right: int | None
) -> None:
    limit = 2 * 4 * 2000
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", {"cpu": limit})
    q, k, v = inputs(4, 4, 512, 512, 8, 8)
    whole, some = (
        [
            8 * (block.rows.stop - block.rows.start) * (block.keys.stop - block.keys.start)
            for block in reference.blocks(
                AttentionInputs(q, k, v, window_right is None, SCALE, *each)
            )
        ]
        for each in ((None, None), (window_left, window_right))
    )
    assert max(*whole, *some) <= limit  # scores at once
    assert len(some) <= len(whole) and sum(some) <= sum(whole)
    if window_left <= 5:
        assert len(some) < len(whole) / 10


@pytest.mark.parametrize("causal", [False, True])
def test_no_keys_and_no_rows(causal: bool) -> None:
    q, k, v = inputs(4, 2, 5, 9, 16, 24)
    out, lse = attention(AttentionInputs(q, k[:, :, :0], v[:, :, :0], causal, SCALE))
    assert out.shape == (2, 4, 5, 24) and bool((out == 0).all())
    assert lse.shape == (2, 4, 5) and bool((lse == -math.inf).all())
    out, lse = attention(AttentionInputs(q[:, :, :0], k, v, causal, SCALE))
    assert (out.shape, lse.shape) == ((2, 4, 0, 24), (2, 4, 0))
    out, lse = attention(AttentionInputs(q[:0], k[:0], v[:0], causal, SCALE))
    assert (out.shape, lse.shape) == ((0, 4, 5, 24), (0, 4, 5))


def test_dtypes() -> None:
    q, k, v = inputs(4, 2, 17, 17, 32, 32)
    right, right_lse = attention(AttentionInputs(q, k, v, True, SCALE))
    for dtype, tolerance in [(torch.bfloat16, 2e-2), (torch.float16, 2e-3), (torch.float32, 1e-5)]:
        low_q, low_k, low_v = (x.to(dtype) for x in (q, k, v))
        out, lse = attention(AttentionInputs(low_q, low_k, low_v, True, SCALE))
        assert (out.dtype, lse.dtype) == (dtype, torch.float32)
        assert float((out.double() - right).norm() / right.norm()) < tolerance
        exact, exact_lse = attention(
            AttentionInputs(low_q, low_k, low_v, True, SCALE), torch.float64
        )
        assert (exact.dtype, exact_lse.dtype) == (torch.float64, torch.float64)
        assert float((exact_lse - lse).abs().max()) < 1e-5
        assert float((exact_lse - right_lse).abs().max()) < 5 * tolerance


def test_autocast_does_not_round_it() -> None:
    q, k, v = (x.float() for x in inputs(4, 2, 17, 17, 32, 32))
    right, _ = attention(AttentionInputs(q, k, v, True, SCALE))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = attention(AttentionInputs(q, k, v, True, SCALE))
    assert out.dtype == torch.float32 and torch.equal(out, right)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize(("causal", "window_left", "window_right"), MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_autograd_s(
    shape: tuple[int, ...],
    causal: bool,
    window_left: int | None,
    window_right: int | None,
    softcap: float | None,
) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(*shape))
    given = AttentionInputs(q, k, v, causal, SCALE, window_left, window_right, softcap)
    out, lse = attention(given)
    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    for of_lse in (None, grad_lse):
        with torch.no_grad():
            made = gradients(given, out, lse, grad_out, of_lse)
        grads = (grad_out, torch.zeros_like(lse) if of_lse is None else of_lse)
        seen = torch.isfinite(lse)  # rows without a key are constant
        right = torch.autograd.grad(
            (out, torch.where(seen, lse, 0.0)), (q, k, v), grads, retain_graph=True
        )
        for mine, theirs in zip(made, right, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_is_differentiable() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(2, 1, 5, 3, 4, 4))
    assert torch.autograd.gradcheck(
        lambda q, k, v: attention(AttentionInputs(q, k, v, True, SCALE, softcap=1.5))[0], (q, k, v)
    )
