"""kernels/attention_fwd_cuda_sm80.cu on the device, launched as a search launches it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.gpu_kernels import judge, much_memory, seen_target
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu

KERNEL = kernels.load("attention_fwd_cuda_sm80")
NAMES = (
    "num_warps",
    "BLOCK_M",
    "BLOCK_N",
    "num_stages",
    "Q_IN_REGS",
    "SHARE_QK_SMEM",
    "RESCALE_THRESHOLD",
    "MIN_BLOCKS_PER_SM",
)
SHAPES = [
    # Head dimensions of every kind of panel, padded for q k^T or not, and both dtypes.
    *(f"h4_kv2_q300_d{d}_{dtype}_causal" for d in (16, 24, 64, 72, 80, 96, 120, 128, 160, 192, 256)
      for dtype in ("bf16", "fp16")),
    # Without a mask; tails of either length; a length that tiles divide.
    *(f"b2_h4_kv4_q{q}_k{k}_d64_bf16_full"
      for q, k in ((1, 1), (127, 129), (512, 512), (65, 1000), (1000, 16))),
    # Causal with lengths that differ: bottom-right aligned, and rows without a key.
    *(f"h4_kv2_q{q}_k{k}_d128_bf16_causal"
      for q, k in ((1, 777), (100, 612), (612, 100), (300, 1), (129, 128), (128, 129))),
    # Groups of heads: MQA, a group that divides no section, one head.
    "b3_h16_kv1_q130_d64_fp16_causal",
    "h6_kv2_q257_k300_d96_bf16_causal",
    "h1_q200_d128_bf16_causal",
    "b2_h40_kv8_q70_d128_bf16_full",
    # head_dim_v that differs, either way.
    "h4_kv2_q200_d64_dv128_bf16_causal",
    "h4_kv2_q200_k333_d128_dv40_fp16_full",
    "h4_kv2_q200_d32_dv256_bf16_causal",
    "h4_kv2_q200_d248_dv16_bf16_full",
    # Long, with more blocks than SMs, and K and V in several sections.
    "h32_kv8_q2048_d128_bf16_causal",
    "b4_h16_q1024_d64_fp16_full",
    "h8_kv4_q3000_k20000_d128_bf16_causal",
]  # fmt: skip


def config(*values: int) -> dict[str, Any]:
    return dict(zip(NAMES, values, strict=True))


def here(workload: Workload) -> Case:
    return Case(KERNEL, workload, seen_target())


@pytest.mark.parametrize("text", SHAPES)
def test_numbers_are_right_and_the_same_each_time(text: str) -> None:
    """Outputs begin as NaN; the default, and random configs."""
    case, gate = here(Workload.parse(text)), Gate("cuda")
    configs = case.feasible().configs
    chosen = random.Random(text).sample(configs, min(6, len(configs)))
    for each in (case.default(), *chosen):
        judge(case, each, gate)


def launched(made: Any, case: Case, chosen: dict[str, Any], scale: float = 0.125) -> Any:
    """Copies of what a launch wrote into outputs full of NaN."""
    language = languages.load("cuda")
    binary = language.compile(case, chosen)
    for output in made[3:]:
        output.fill_(float("nan"))
    language.prepare(LaunchSpec(case, chosen, scale), binary, made)(*made)
    torch.cuda.synchronize()
    return [output.clone() for output in made[3:]]


@pytest.mark.parametrize("values", [(4, 64, 64, 1, 0, 0, 8, 1), (8, 128, 48, 3, 1, 1, 8, 1)])
def test_layouts_are_strides(values: tuple[int, ...]) -> None:
    """BHSD and a slice of a longer cache give what BSHD gives, to the bit, and write beside
    nothing."""
    workload = Workload.parse("b2_h4_kv4_q200_k200_d64_bf16_causal")
    made = check.tensors(workload, "cuda", seed=0)
    case = here(workload)
    right = launched(made, case, config(*values))

    def part_of_more(x: Any) -> Any:
        batch, heads, seqlen, head_dim = x.shape
        shape = (batch, heads + 3, seqlen + 8, head_dim + 16)
        more = torch.full(shape, 7.0, dtype=x.dtype, device=x.device)
        view = more[:, 1 : heads + 1, :seqlen, :head_dim]
        view.copy_(x)
        return view

    for layout in (torch.Tensor.contiguous, part_of_more):
        others = [layout(x) for x in made[:4]]
        got = launched((*others, made[4]), case, config(*values))
        assert all(torch.equal(a, b) for a, b in zip(right, got, strict=True)), layout
    around = others[3]._base
    assert around is not None
    around = around.clone()
    around[:, 1:5, :200, :64] = 7
    assert bool((around == 7).all())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_any_positive_scale(scale: float) -> None:
    workload = Workload.parse("h4_kv2_q150_k170_d64_fp16_causal")
    made, case = check.tensors(workload, "cuda", seed=0), here(workload)
    launched(made, case, case.default(), scale)
    found = check.compare(workload, made, scale, torch.float32)
    # Scores of hundreds are exact to 1e-5 each in fp32, and exp makes that relative.
    assert found.error < 5e-3 and found.lse_error < 1e-2


def test_offsets_beyond_two_to_the_31st() -> None:
    """8.4 million keys of 256 elements: a row's offset no longer fits 32 bits."""
    workload = Workload.parse("h1_q16_k8404992_d256_bf16_full")
    with much_memory():
        made = check.tensors(workload, "cuda", seed=0)
        # The last keys decide: they alone resemble the queries.
        made[1][:, :, -16:] = made[0] * 4
    case = here(workload)
    launched(made, case, case.default(), 256**-0.5)
    with much_memory():
        found = check.compare(workload, made, 256**-0.5, torch.float32)
    assert found.passed, found.reason


def test_the_compiler_speaks_of_what_it_has_compiled_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVRTC has a cache of its own where there is a driver, and says nothing of what it finds."""
    case, language = here(Workload.parse("h4_kv2_q300_d64_bf16_causal")), languages.load("cuda")
    monkeypatch.setattr("tunefa.compile.cubin_cache.load", lambda name: None)
    for _ in range(2):
        found = language.compile(case, case.default()).resources
        assert found.registers is not None and found.spill_bytes is not None
