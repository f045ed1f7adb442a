"""tunefa/runtime/api.py with packed sequences: arguments, autograd and torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.packed_calls import (
    MASKS,
    SEQLENS,
    call,
    changed,
    flat,
    packed_options,
    right,
    tensors,
)
from tests.support.packed_sequences import starts
from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime import ops
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.process import Runtime


@pytest.mark.parametrize("options", MASKS)
def test_off_cuda_it_is_pytorch_s(fresh: Runtime, options: dict[str, Any]) -> None:
    made = tensors()
    out, lse = call(made, return_lse=True, **options)
    for mine, theirs in zip((out, lse), right(made, **options), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert torch.equal(call(made, **options), out)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.why.startswith("pytorch: q is on cpu")


def test_nothing_to_compute() -> None:
    for made in (tensors(0, 0), tensors(5, 4, keys=(0, 0))):
        out, lse = call(made, return_lse=True)
        assert out.shape == (len(made.q), 4, 16) and lse.shape == (4, len(made.q))
        assert not out.any() and lse.isneginf().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.ones(2, 3, 4, 32)}, "q has 4 axes, .*: give 3, packed tensors are"),
        ({"k": torch.ones(16, 2, 16)}, "head_dim of q is 32 and of k 16"),
        ({"v": torch.ones(15, 2, 32)}, "seqlen of k is 16 and of v 15"),
        ({"k": torch.ones(16, 3, 32), "v": torch.ones(16, 3, 32)}, "q has 4 heads, which is not"),
        ({"v": torch.ones(16, 2, 32).half()}, r"v is torch\.float16 and q is torch\.float32"),
        ({"cu_seqlens_q": [0, 16]}, r"cu_seqlens_q is a list: give a torch\.Tensor"),
        ({"cu_seqlens_q": starts(*SEQLENS).long()}, r"convert it, cu_seqlens_q\.int\(\)"),
        ({"cu_seqlens_k": starts(*SEQLENS)[None]}, r"cu_seqlens_k has shape \(1, 5\)"),
        ({"cu_seqlens_k": starts(*SEQLENS)[::2]}, "give one contiguous axis"),
        ({"cu_seqlens_k": starts(*SEQLENS).to("meta")}, "cu_seqlens_k is on meta and q is on cpu"),
        ({"cu_seqlens_k": starts(16)}, "cu_seqlens_q has 4 sequences and cu_seqlens_k 1"),
        ({"max_seqlen_q": -1}, "max_seqlen_q is -1: give the length of the longest"),
        ({"max_seqlen_k": 9.0}, r"max_seqlen_k is 9\.0: give the length"),
        ({"window": 3}, "window is 3 and causal is False"),
        ({"window": (3, -1)}, r"window is \(3, -1\): give the number of keys"),
        ({"softcap": 0.0}, r"softcap is 0\.0: give a positive number"),
        ({"q": torch.ones(16, 4, 32).to(E4M3)}, r"q is torch\.float8_e4m3fn: packed sequences are"),
        ({"scale": float("nan")}, "scale is nan: give a finite number"),
    ],
)
def test_arguments_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    made: dict[str, Any] = dict(zip(names, flat(tensors()), strict=True))
    given = {**made, "max_seqlen_q": 9, "max_seqlen_k": 9, **changes}
    with pytest.raises(TunefaError, match=message):
        tunefa.flash_attention_varlen(**given)


@pytest.mark.parametrize("options", MASKS)
def test_gradients(options: dict[str, Any]) -> None:
    made = tensors(5, 0, 9, 2, keys=(7, 3, 0, 2), dtype=torch.float64)
    leaves = [x.requires_grad_() for x in made[:3]]
    out, lse = call(made, return_lse=True, **options)
    seen = lse.isfinite()
    loss = out.sin().sum() + lse[seen].sin().sum()
    right_out, right_lse = right(made, **options)
    right_loss = right_out.sin().sum() + right_lse[seen].sin().sum()
    found = torch.autograd.grad(loss, leaves)
    for mine, theirs in zip(found, torch.autograd.grad(right_loss, leaves), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("options", "serves"),
    [
        ({}, True),
        ({"causal": True, "window": 3}, True),
        ({"window": (2, 0)}, True),
        ({"window": (2, 1)}, False),
        ({"window": (None, 1)}, False),
        ({"window": (2, None)}, False),
        ({"causal": True, "softcap": 1.5}, False),
    ],
)
def test_flash_computes_only_what_it_knows(
    flash_calls: list[Call], options: dict[str, Any], serves: bool
) -> None:
    """The device and the tensors are such as it serves."""
    made = tensors()
    call(changed(made, q=made.q.requires_grad_()), **options).sum().backward()
    assert len(flash_calls) == 2 * serves


@pytest.mark.parametrize(
    "options", [packed_options(9, 9, True), packed_options(9, 9, False, 2, 2, 1.5)]
)
def test_the_op_is_sound(options: Options) -> None:
    made = tensors(dtype=torch.float64)
    for x in made[:3]:
        x.requires_grad_()
    assert ops.flash_attention(made, options, None)[0].requires_grad
    arguments = (*flat(made), None, None, None, *options, None)
    torch.library.opcheck(torch.ops.tunefa.flash_attention.default, arguments)


@pytest.mark.parametrize("options", [{"causal": True}, *MASKS[2:4]])
def test_compiles_whole_with_any_lengths(options: dict[str, Any]) -> None:
    def attend(made: Tensors, longest: int) -> Tensor:
        out: Tensor = tunefa.flash_attention_varlen(*flat(made), longest, longest, **options)
        return out

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
    for seqlens in ((5, 0, 9, 2), (3, 12, 8), (20,)):
        made = tensors(*seqlens)
        torch.testing.assert_close(compiled(made, max(seqlens)), right(made, **options)[0])
