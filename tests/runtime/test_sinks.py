"""tunefa/runtime/sinks.py: one more logit of each head, which has no value, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.unwritten import nan_behind
from tunefa.errors import TunefaError
from tunefa.runtime.sinks import add_sinks, with_sinks

BATCH, ROWS, KEYS, HEADS, DIM = 2, 5, 7, 4, 16


def made(layout: str = "bshd", rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(q, k, v, sinks) in fp64, with 2 KV heads."""
    torch.manual_seed(0)
    q = torch.randn(BATCH, rows, HEADS, DIM).double()
    k, v = torch.randn(2, BATCH, KEYS, 2, DIM).double()
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    return q, k, v, torch.randn(HEADS).double()


def defined(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """(out, lse) from the definition: a softmax over the scores and the sink, of (batch, seqlen,
    heads, head_dim)."""
    k, v = (x.repeat_interleave(2, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(DIM)
    if causal:
        hidden = torch.ones(q.shape[1], KEYS).tril(KEYS - q.shape[1]) == 0
        scores = scores.masked_fill(hidden, -math.inf)
    sink = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
    both = torch.cat([scores, sink], -1)
    return torch.einsum("bhqk,bkhd->bqhd", both.softmax(-1)[..., :-1], v), both.logsumexp(-1)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_sink_is_one_more_logit_without_a_value(layout: Any, causal: bool) -> None:
    q, k, v, sinks = made(layout)
    out, lse = tunefa.flash_attention(
        q, k, v, sinks=sinks, causal=causal, layout=layout, return_lse=True
    )
    turned = [x.transpose(1, 2) if layout == "bhsd" else x for x in (q, k, v)]
    right, right_lse = defined(turned[0], turned[1], turned[2], sinks, causal)
    torch.testing.assert_close(out.transpose(1, 2) if layout == "bhsd" else out, right)
    torch.testing.assert_close(lse, right_lse)
    alone = tunefa.flash_attention(q, k, v, sinks=sinks, causal=causal, layout=layout)
    assert torch.equal(alone, out)


def test_gradients_are_those_of_the_definition() -> None:
    given = [x.requires_grad_() for x in made()]
    weights = torch.randn(BATCH, ROWS, HEADS, DIM).double()
    of_lse = torch.randn(BATCH, HEADS, ROWS).double()

    def gradients(found: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        total = (found[0] * weights).sum() + (found[1] * of_lse).sum()
        return torch.autograd.grad(total, given)

    q, k, v, sinks = given
    mine = gradients(tunefa.flash_attention(q, k, v, sinks=sinks, causal=True, return_lse=True))
    theirs = gradients(defined(q, k, v, sinks, True))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert all(bool(each.abs().max() > 1e-3) for each in mine)


def test_packed_sequences_have_sinks_too() -> None:
    q, k, v, sinks = made()
    starts = torch.tensor([0, ROWS, 2 * ROWS], dtype=torch.int32)
    starts_k = torch.tensor([0, KEYS, 2 * KEYS], dtype=torch.int32)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    out, lse = tunefa.flash_attention_varlen(
        packed[0], packed[1], packed[2], starts, starts_k, ROWS, KEYS, sinks=sinks,
        causal=True, return_lse=True,
    )  # fmt: skip
    right, right_lse = defined(q, k, v, sinks, True)
    torch.testing.assert_close(out.view(right.shape), right)
    torch.testing.assert_close(lse.view(HEADS, BATCH, ROWS).transpose(0, 1), right_lse)


def test_rows_of_no_sequence_take_no_part_in_the_gradient_of_sinks() -> None:
    q, k, v, sinks = made()
    starts = torch.tensor([0, ROWS, ROWS + 2], dtype=torch.int32)
    starts_k = torch.tensor([0, KEYS, KEYS + 4], dtype=torch.int32)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    sinks.requires_grad_()

    def gradient(keep: int) -> Tensor:
        out, lse = tunefa.flash_attention_varlen(
            packed[0][:keep], packed[1], packed[2], starts, starts_k, ROWS, KEYS, sinks=sinks,
            return_lse=True,
        )  # fmt: skip
        total = out[: ROWS + 2].cos().sum() + lse[:, : ROWS + 2].sin().sum()
        return torch.autograd.grad(total, sinks)[0]

    right = gradient(ROWS + 2)
    with nan_behind():
        torch.testing.assert_close(gradient(2 * ROWS), right)


def test_they_may_be_added_in_place() -> None:
    sinks = torch.tensor([0.5, -math.inf, 3.0])
    lse, starts = torch.randn(3, 9), torch.tensor([0, 4, 7]).int()
    lse[:, 2] = -math.inf  # a row that sees no key
    lse[:, 7:] = math.nan
    out = torch.randn(9, 3, DIM).bfloat16()
    out[2], out[7:] = 0, 7
    right, right_lse = with_sinks(out, lse, sinks, "thd", starts)
    found = add_sinks(out, lse, sinks, starts)
    assert torch.equal(out[:7], right[:7]) and torch.equal(found[:, :7], right_lse[:, :7])
    assert bool((out[7:] == 7).all()), "rows of no sequence stay as they are"


def test_a_row_without_keys_has_the_sink_alone() -> None:
    q, k, v, sinks = made(rows=KEYS + 2)  # two rows see no key
    given = [x.requires_grad_() for x in (q, k, v, sinks)]
    out, lse = tunefa.flash_attention(*given[:3], sinks=sinks, causal=True, return_lse=True)
    assert not out[:, :2].any()
    torch.testing.assert_close(lse[..., :2], sinks[None, :, None].expand(BATCH, HEADS, 2))
    grads = torch.autograd.grad(out.sum(), given)
    assert all(bool(each.isfinite().all()) for each in grads)


def test_a_row_without_keys_and_sink_has_no_gradient() -> None:
    q, k, v, _ = made(rows=KEYS + 2)
    sinks = torch.tensor([-math.inf, 0.2, -math.inf, 1.0]).double().requires_grad_()
    out, lse = tunefa.flash_attention(q, k, v, sinks=sinks, causal=True, return_lse=True)
    assert bool((lse[:, ::2, :2] == -math.inf).all()) and bool(lse[:, 1::2].isfinite().all())
    (grad,) = torch.autograd.grad(out.sum() + lse[..., 2:].sum(), sinks)
    assert bool(grad.isfinite().all()) and not grad[::2].any() and bool(grad[1::2].all())
    fixed, leaves = sinks.detach(), [x.requires_grad_() for x in (q, k, v)]
    out, lse = tunefa.flash_attention(*leaves, sinks=fixed, causal=True, return_lse=True)
    grads = torch.autograd.grad(out.sum() + lse[..., 2:].sum(), leaves)
    assert all(bool(each.isfinite().all()) for each in grads)


def test_a_sink_that_takes_nothing_changes_nothing() -> None:
    q, k, v, _ = made()
    sinks = torch.full((HEADS,), -math.inf)
    mine = tunefa.flash_attention(q, k, v, sinks=sinks, return_lse=True)
    theirs = tunefa.flash_attention(q, k, v, return_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_the_output_keeps_its_dtype_and_compiles() -> None:
    q, k, v, sinks = (x.bfloat16() for x in made())

    def attend(q: Tensor, sinks: Tensor) -> Tensor:
        return tunefa.flash_attention(q, k, v, sinks=sinks, causal=True)

    out = attend(q, sinks)
    assert out.dtype == torch.bfloat16
    compiled: Any = torch.compile(attend, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, sinks), out)


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        ([0.0] * HEADS, "sinks is a list: give a torch.Tensor, (heads,)"),
        (torch.zeros(2), "sinks is (2,), torch.float32: give (heads,), here (4,)"),
        (torch.zeros(HEADS).int(), "sinks is (4,), torch.int32: give (heads,), here (4,)"),
        (torch.zeros(HEADS, device="meta"), "sinks is on meta and q is on cpu: move one"),
    ],
)
def test_wrong_sinks_say_what_to_give(sinks: Any, message: str) -> None:
    q, k, v, _ = made()
    with pytest.raises(TunefaError) as caught:
        tunefa.flash_attention(q, k, v, sinks=sinks)
    assert message in str(caught.value)
    with pytest.raises(TunefaError, match="q is a list"):
        wrong: Any = [1.0]
        tunefa.flash_attention(wrong, k, v, sinks=torch.zeros(HEADS))
