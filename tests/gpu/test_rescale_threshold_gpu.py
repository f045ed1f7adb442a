"""Rows whose maxima grow while a kernel goes from the last keys to the first: with a threshold it
rescales its output then, and only then, which random inputs of one size hardly ever ask for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

SM90 = Target.named("sm90")
KERNELS = ("attention_fwd_gluon_sm90", "attention_fwd_cuda_sm90")


def _is_served() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _is_served(), reason="needs a Hopper GPU"),
]


def growing(workload: Workload) -> tuple[Any, ...]:
    """Tensors of a workload whose keys are up to eight times as large towards the first, for every
    second block of 32 query rows: some warps rescale, and some of their rows, others do not."""
    q, k, v, *rest = check.tensors(workload, "cuda", seed=0)
    ramp = torch.linspace(8.0, 0.5, workload.seqlen_k, device="cuda")
    row = torch.arange(workload.seqlen_q, device="cuda")
    small = torch.where(row // 32 % 2 == 0, 1.0, 0.05)
    q = (q * small[:, None]).to(q.dtype)
    k = (k * ramp[:, None]).to(k.dtype)
    return q, k, v, *rest


def rises(workload: Workload, made: tuple[Any, ...], config: dict[str, Any]) -> torch.Tensor:
    """By how many powers of two each row's maximum grows in each block beyond those before."""
    q, k = made[0].float(), made[1].float().repeat_interleave(workload.group, 1)
    scores = q @ k.transpose(2, 3) * workload.head_dim**-0.5 * 1.4427
    if workload.causal:
        shape, offset = scores.shape[2:], workload.seqlen_k - workload.seqlen_q
        hidden = torch.ones(shape, dtype=torch.bool, device="cuda").triu(offset + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    blocks = torch.stack([x.amax(3) for x in scores.split(config["BLOCK_N"], 3)][::-1], dim=3)
    return blocks[..., 1:] - blocks.cummax(3).values[..., :-1]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("kind", ["d64_bf16", "d64_fp16", "d80_bf16", "d96_fp16", "d128_bf16",
                                  "d160_bf16", "d256_bf16"])  # fmt: skip
def test_maxima_that_grow(kind: str, mask: str, name: str) -> None:
    workload = Workload.parse(f"b2_h4_kv2_q1000_k1111_{kind}_{mask}")
    case = Case(kernels.load(name), workload, SM90)
    config = {**case.default(), "RESCALE_THRESHOLD": 8}
    assert case.refusal(config) is None
    made = growing(workload)
    grown = rises(workload, made, config) > 8.0
    assert grown.any() and not grown.all(), "some rows rescale, some do not"
    language = languages.load(case.kernel.language)
    scale = workload.head_dim**-0.5
    compiled = language.compile(case, config)
    language.prepare(LaunchSpec(case, config, scale), compiled, made)(*made)
    found = check.compare(workload, made, scale, torch.float64)
    assert found.passed, found.reason
    always = {**config, "RESCALE_THRESHOLD": 0}
    again = (*made[:3], *(torch.full_like(x, float("nan")) for x in made[3:]))
    compiled = language.compile(case, always)
    language.prepare(LaunchSpec(case, always, scale), compiled, again)(*again)
    other = check.compare(workload, again, scale, torch.float64)
    assert found.error <= 1.5 * other.error + 1e-5, f"{found.error} against {other.error}"
