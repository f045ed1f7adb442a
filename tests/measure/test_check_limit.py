"""The limit of `Gate` in tunefa/measure/check.py: twice the error of PyTorch's attention."""

from __future__ import annotations

import pytest
import torch

from tunefa.measure import check, reference
from tunefa.spec.workload import Workload

# The error of PyTorch's attention on these is above half of what rounding alone may make.
SHAPES = [
    Workload.parse("h2_q64_k96_d64_bf16_causal"),
    Workload.parse("h2_q64_k96_d64_fp16_full"),
]


def off_by(shape: Workload, error: float) -> check.Comparison:
    """The gate's verdict of a kernel whose relative error is this one, and which is right else."""
    made = check.tensors(shape, "cpu", seed=0)
    scale = shape.head_dim**-0.5
    right, right_lse = reference.attention(check.inputs(shape, made, scale), torch.float32)
    noise = torch.randn(right.shape, generator=torch.Generator().manual_seed(1))
    wrong = right + noise * (error * right.norm() / noise.norm())
    made = *made[:3], torch.empty_like(wrong), made[4]  # out in fp32: rounding adds nothing

    def launch() -> None:
        made[3].copy_(wrong)
        made[4].copy_(right_lse)

    return check.Gate("cpu").compare(launch, shape, made)


def peers_error(shape: Workload) -> float:
    """The error of PyTorch's attention on inputs like those."""
    made = check.tensors(shape, "cpu", seed=2)
    q, k, v, out, lse, *_ = made
    mask = torch.ones(shape.seqlen_q, shape.seqlen_k, dtype=torch.bool)
    if shape.causal:
        mask = mask.tril(shape.seqlen_k - shape.seqlen_q)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    out.copy_(sdpa(q, k, v, attn_mask=mask, enable_gqa=True))
    lse.fill_(0.0)
    return check.compare(shape, made, shape.head_dim**-0.5, torch.float32).error


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_error_of_more_than_twice_pytorchs_does_not_pass(shape: Workload) -> None:
    error = peers_error(shape)
    assert 2 * error > check.ROUNDING[shape.dtype], "the shape says nothing of the factor"
    limit = check.Gate("cpu").limit(shape)
    assert limit == pytest.approx(2 * error, rel=0.1)
    assert off_by(shape, 1.6 * error).passed
    verdict = off_by(shape, 2.4 * error)
    assert not verdict.passed and verdict.limit == pytest.approx(2 * error, rel=0.1)
    assert verdict.error == pytest.approx(2.4 * error, rel=1e-3)


def test_where_pytorch_is_exact_rounding_is_the_limit() -> None:
    shape = Workload.parse("h2_q16_k1_d64_bf16_full")  # out is v
    assert check.Gate("cpu").limit(shape) == check.ROUNDING["bf16"]


def test_a_limit_is_measured_once_a_shape() -> None:
    gate = check.Gate("cpu")
    first = gate.limit(SHAPES[0])
    assert gate.limit(SHAPES[0]) == first != gate.limit(SHAPES[1])


@pytest.mark.parametrize("text", ["h2_q16_k16_d64_bf16_softcap", "h2_q16_k16_d64_e4m3"])
def test_without_a_peer_the_tolerance_is_the_limit(text: str) -> None:
    shape = Workload.parse(text)
    assert check.Gate("cpu").limit(shape) == check.TOLERANCE[shape.dtype]
