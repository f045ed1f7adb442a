"""tunefa/runtime/cpu_attention.py: PyTorch's kernels for the CPU give what the reference gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tunefa.measure import gradients, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.runtime import cpu_attention

SHAPES = [  # heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v
    (4, 4, 33, 33, 16, 16),
    (6, 2, 33, 33, 257, 257),
    (4, 2, 7, 40, 8, 24),
    (4, 1, 40, 7, 24, 8),
    (2, 1, 1, 40, 300, 64),
]
MASKS: list[tuple[bool, int | None, int | None]] = [
    (False, None, None),
    (True, None, None),
    (True, 5, None),
    (False, 4, 3),
    (False, None, 2),
    (False, 0, None),
    (True, 10**6, None),
]


def inputs(
    shape: tuple[int, ...], mask: tuple[bool, int | None, int | None], dtype: torch.dtype
) -> AttentionInputs:
    """Two batches; in memory q's heads are next to each other, v's rows are not contiguous."""
    heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v = shape
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator, dtype=torch.float64).to(dtype)

    q = normal(seqlen_q, heads, head_dim).transpose(1, 2)
    k, v = normal(heads_kv, seqlen_k, head_dim), normal(heads_kv, head_dim_v, seqlen_k).mT
    return AttentionInputs(q, k, v, mask[0], 0.3, *mask[1:])


@pytest.mark.parametrize("rows", [512, 3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_reference_with_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    mask: tuple[bool, int | None, int | None],
    rows: int,
) -> None:
    monkeypatch.setattr(cpu_attention, "_MASKED_ROWS", rows)
    made = inputs(shape, mask, torch.float64)
    assert cpu_attention.serves(made)
    out, lse = cpu_attention.attention(made)
    right = reference.attention(made)
    torch.testing.assert_close((out, lse), right)
    grad = torch.ones((), dtype=out.dtype).expand(out.shape)  # with strides of 0
    found = cpu_attention.gradients(made, out, lse, grad)
    torch.testing.assert_close(found, gradients.gradients(made, *right, grad))


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-300])
def test_a_scale_that_pytorch_s_causal_mask_does_not_survive(scale: float) -> None:
    made = replace(inputs(SHAPES[0], MASKS[1], torch.float32), scale=scale)
    out, lse = cpu_attention.attention(made)
    torch.testing.assert_close((out, lse), reference.attention(made))
    grad = torch.randn_like(out)
    found = cpu_attention.gradients(made, out, lse, grad)
    torch.testing.assert_close(found, gradients.gradients(made, out, lse, grad))


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
@pytest.mark.parametrize("mask", MASKS[1:4])
def test_low_precision(
    mask: tuple[bool, int | None, int | None], dtype: torch.dtype, error: float
) -> None:
    made = inputs(SHAPES[2], mask, dtype)
    out, lse = cpu_attention.attention(made)
    right, right_lse = reference.attention(made, torch.float64)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    assert float((out - right).norm() / right.norm()) < error
    torch.testing.assert_close(lse.double(), right_lse, atol=1e-3, rtol=1e-3)


def test_what_it_does_not_serve() -> None:
    made = inputs(SHAPES[0], MASKS[1], torch.float32)
    assert not cpu_attention.serves(replace(made, softcap=1.0))
    assert not cpu_attention.serves(replace(made, k=made.k[:, :, :0], v=made.v[:, :, :0]))
    assert not cpu_attention.serves(replace(made, q=made.q.to("meta")))


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(64, 32), (32, 64)])
def test_heads_that_are_innermost_in_memory(head_dim: int, head_dim_v: int) -> None:
    """PyTorch pads such tensors without changing their layout."""
    torch.manual_seed(0)
    q, k = (torch.randn(1, 4, 33, head_dim, dtype=torch.double) for _ in range(2))
    v = torch.randn(1, 4, 33, head_dim_v, dtype=torch.double)
    q_, k_, v_ = (x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in (q, k, v))
    right, _ = reference.attention(AttentionInputs(q, k, v, False, 0.125))
    found, _ = cpu_attention.attention(AttentionInputs(q_, k_, v_, False, 0.125))
    torch.testing.assert_close(found, right)
