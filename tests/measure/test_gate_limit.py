"""The limit of `Gate` in tunefa/measure/gate.py: twice the error of PyTorch's attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tunefa.measure import check, sdpa
from tunefa.measure.comparison import TOLERANCE, Comparison
from tunefa.measure.gate import Gate, Probe
from tunefa.measure.ops.fwd import ROUNDING
from tunefa.spec.workload import Workload

# The error of PyTorch's attention on these is above half of what rounding alone may make.
SHAPES = [
    Workload.parse("h2_q64_k96_d64_bf16_causal"),
    Workload.parse("h2_q64_k96_d64_fp16_full"),
]


def off_by(shape: Workload, error: float) -> Comparison:
    """The gate's verdict of a kernel whose relative error is this one, and which is right else."""
    probe = Probe.of(shape, "normal", "cpu")
    right, right_lse = probe.expected.out, probe.expected.lse
    noise = torch.randn(right.shape, generator=torch.Generator().manual_seed(1))
    wrong = right + noise * (error * right.norm() / noise.norm())
    # The output is in fp32: rounding adds nothing.
    probe = replace(probe, tensors=(*probe.tensors[:3], torch.empty_like(wrong), probe.tensors[4]))

    def launch() -> None:
        probe.tensors[3].copy_(wrong)
        probe.tensors[4].copy_(right_lse)

    return Gate("cpu").compare(launch, probe)


def limit_of(shape: Workload) -> float:
    return Gate("cpu").limit(Probe.of(shape, "normal", "cpu"))


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
    assert 2 * error > ROUNDING[shape.dtype], "the shape says nothing of the factor"
    limit = limit_of(shape)
    assert limit == pytest.approx(2 * error, rel=0.1)
    assert off_by(shape, 1.6 * error).passed
    verdict = off_by(shape, 2.4 * error)
    assert not verdict.passed and verdict.limit == pytest.approx(2 * error, rel=0.1)
    assert verdict.error == pytest.approx(2.4 * error, rel=1e-3)


def test_where_pytorch_is_exact_rounding_is_the_limit() -> None:
    shape = Workload.parse("h2_q16_k1_d64_bf16_full")  # out is v
    assert limit_of(shape) == ROUNDING["bf16"]


def test_a_limit_is_measured_once_a_shape() -> None:
    gate, (probe, other) = Gate("cpu"), (Probe.of(each, "normal", "cpu") for each in SHAPES)
    first = gate.limit(probe)
    assert gate.limit(other) != first
    probe.expected.out.zero_()
    assert gate.limit(probe) == first


@pytest.mark.parametrize(
    "text",
    [
        "q70_k90_w20",
        "q90_k70_w20",
        "q60_k130",
        "q64_w1",
        "q64_full",
        "q70_k90_w20_a9",
        "q90_k70_a9",
        "q64_full_w20",
    ],
)
def test_the_limit_is_the_error_of_pytorch_s_attention(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch computes the same attention: another mask would make the limit useless."""
    monkeypatch.setattr(sdpa, "_MASKED_ROWS", 32)
    shape = Workload.parse(f"{text}_h4_kv2_d32_fp32")
    assert ROUNDING["fp32"] <= limit_of(shape) < TOLERANCE["fp32"]


@pytest.mark.parametrize("text", ["h2_q16_k16_d64_bf16_softcap", "h2_q16_k16_d64_e4m3"])
def test_without_a_peer_the_tolerance_is_the_limit(text: str) -> None:
    shape = Workload.parse(text)
    assert limit_of(shape) == TOLERANCE[shape.dtype]
