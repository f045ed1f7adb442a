"""8-bit attention in attention_fwd_cuda_sm90: V^T to the bit on the CPU, and what is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import cuda_on_cpu
from tests.support.launch_specs import spec_of
from tests.support.transposed_values import in_memory
from tunefa.compile import languages
from tunefa.compile.contract import Compiled
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_cuda_sm90")
SM90 = archs.load("sm90")
NARROW = KERNEL.default(Workload.parse("h16_q4096_d256_e4m3_full_fast"), SM90)
"""Probabilities and V in e4m3."""


@pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(
    "sizes", ["h1_k1_d64", "b2_h4_kv2_k333_d128", "h1_k512_d256", "h6_kv3_k17_d16", "b2_k800_d176"]
)
@pytest.mark.parametrize("accuracy", ["", "_fast"])
def test_v_is_transposed_and_reordered_to_the_bit(
    sizes: str, accuracy: str, tmp_path: Path
) -> None:
    w = Workload.parse(f"{sizes}_q1_e4m3_full{accuracy}")
    preprocess = KERNEL.module.preprocess(w, NARROW)
    program = cuda_on_cpu.Program(
        KERNEL.source.with_suffix(".cu"), preprocess, tmp_path, lambda source: source
    )
    more = torch.randint(-128, 128, (w.batch, w.seqlen_k, w.heads_kv + 1, w.head_dim_v + 16))
    v = _without_nan(more.to(torch.int8))[:, :, 1:, : w.head_dim_v].transpose(1, 2)
    (shape, dtype), *two_level = _scratch(v, w)
    assert dtype == torch.float8_e4m3fn and bool(two_level) == (not accuracy)
    memory = torch.full((w.batch + 1, *shape[1:]), 127, dtype=torch.int8)  # any bits of 8
    made = memory[: w.batch]
    inverse = [torch.empty(shape, dtype=dtype) for shape, dtype in two_level[:1]]
    spec = spec_of(KERNEL, w, NARROW)
    given = [v] * 8 + [made, *inverse]
    program.library.set_readable(0, None)
    program.launch(lambda tensors: KERNEL.module.preprocess_arguments(tensors, spec), given)
    right = torch.zeros(w.batch, w.heads_kv, shape[3], w.head_dim_v, dtype=torch.int8)
    right[:, :, : w.seqlen_k] = v
    assert torch.equal(made, torch.stack([in_memory(x) for x in right.flatten(0, 1)]).view(shape))
    assert bool((memory[w.batch] == 127).all())  # nothing is written behind it
    for each in inverse:
        _check_inverse_magnitudes(each, v.view(torch.float8_e4m3fn).float())


def _without_nan(bits: torch.Tensor) -> torch.Tensor:
    """Bits of e4m3 with the largest number in place of NaN."""
    return torch.where(bits & 127 == 127, bits - 1, bits)


def _scratch(v: torch.Tensor, w: Workload) -> list[Any]:
    found: list[Any] = KERNEL.module.scratch((v, v, v), spec_of(KERNEL, w, NARROW))
    return found


def _check_inverse_magnitudes(words: torch.Tensor, v: torch.Tensor) -> None:
    """Words have, for each 128 keys, the largest in fp32, and from word 4 on each column's in
    bf16."""
    for piece, keys in enumerate(torch.split(v.abs(), 128, dim=2)):
        right = keys.shape[2] / keys.sum(2).clamp_min(1e-6)
        columns = words[:, :, piece, 4:].contiguous().view(torch.bfloat16).float()
        torch.testing.assert_close(columns, right, rtol=1e-2, atol=0.0)
        largest = words[:, :, piece, 0].contiguous().view(torch.float32)
        torch.testing.assert_close(largest, right.amax(-1), rtol=1e-2, atol=0.0)


def test_no_grid_is_larger_than_a_launch_takes() -> None:
    """8.4 million keys, of which a block takes 128: 65,535 is the most of the second axis."""
    w = Workload.parse("h1_q16_k8404992_d64_e4m3_full")
    v = torch.empty(1, 1, 1, 64, dtype=torch.int8).expand(1, 1, w.seqlen_k, 64)
    vt = torch.empty(1, 1, 1, 1, dtype=torch.int8).expand(1, 1, 64, w.seqlen_k)
    for config in (NARROW, {**NARROW, "FP16_PV": 1}):
        spec = spec_of(KERNEL, w, config)
        grid, _ = KERNEL.module.preprocess_arguments((v,) * 8 + (vt,), spec)
        assert grid == (w.seqlen_k // 128, 1, 1)


def binary(workload: Workload) -> Compiled:
    case = Case(KERNEL, workload, Target.named("sm90"))
    made: Compiled = languages.load("cuda").compile(case, case.default())
    return made


needs_nvrtc = pytest.mark.skipif(
    languages.load("cuda").why_no_compiler(SM90) is not None, reason="needs NVRTC"
)


@needs_nvrtc
@pytest.mark.parametrize(
    ("head_dim", "mask"),
    [(16, "full"), (64, "causal"), (96, "full_fast"), (128, "full"), (128, "causal"),
     (192, "causal"), (192, "full_fast"), (256, "full"), (256, "full_fast")],
)  # fmt: skip
def test_defaults_take_the_memory_that_the_space_says(head_dim: int, mask: str) -> None:
    workload = Workload.parse(f"h16_q4096_d{head_dim}_e4m3_{mask}")
    resources = binary(workload).resources
    said = KERNEL.space.estimate(KERNEL.default(workload, SM90), workload, SM90)
    assert resources.smem_bytes == said["smem_bytes"]
    # Next to nothing: four registers of 160.
    assert resources.spill_bytes is not None and resources.spill_bytes <= 16


def test_fast_sums_need_no_memory_in_fp32() -> None:
    made = {}
    config = {**NARROW, "WARPGROUPS": 2}
    for accuracy in ("", "_fast"):
        workload = Workload.parse(f"h16_q4096_d128_e4m3_full{accuracy}")
        said = KERNEL.space.estimate(config, workload, SM90)["smem_bytes"]
        made[accuracy] = said, KERNEL.module.variant(workload, config)["defines"]
    # Sums of two warpgroups of 64 rows in fp32 with maxima, in place of their output in 16 bits.
    assert made[""][0] - made["_fast"][0] == 2 * 64 * (128 * (4 - 2) + 32)
    assert [made[key][1]["TWO_LEVEL_SUMS"] for key in ("", "_fast")] == [1, 0]


@needs_nvrtc
def test_only_e4m3_needs_something_to_run_first() -> None:
    text = "b2_h4_kv2_q300_k333_d128_{}full"
    assert binary(Workload.parse(text.format(""))).preprocess is None
    assert binary(Workload.parse(text.format("e4m3_"))).preprocess is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"EPILOGUE_SUBTILE": 0}, "e4m3 needs EPILOGUE_SUBTILE 1"),
        ({"BLOCK_N": 112}, "multiple of 32"),
        ({"BLOCK_N": 160, "num_stages": 2, "Q_STAGES": 1}, "must leave a thread 24 registers"),
        ({"P_IN_SMEM": 1}, "P_IN_SMEM needs a 16-bit dtype"),
        ({"FP16_PV": 1, "BLOCK_N": 96}, "or 32 for FP16_PV"),
    ],
)
def test_what_8_bits_ask_for_is_refused_in_words(changes: dict[str, Any], reason: str) -> None:
    workload = Workload.parse("h16_q4096_d128_e4m3_full")
    config = {**KERNEL.default(workload, SM90), **changes}
    assert reason in (KERNEL.refusal(config, workload, SM90) or "")


@pytest.mark.parametrize(
    ("sizes", "serves"),
    [("q4096_d72", False), ("q4096_d64_softcap", False), ("q4096_d128_w100", False),
     ("q8_d128", False), ("q8_d256", True), ("q4096_d80_dv16", True)],
)  # fmt: skip
def test_others_are_left_to_others(sizes: str, serves: bool) -> None:
    assert (KERNEL.why_not(Workload.parse(f"h8_kv2_{sizes}_e4m3"), SM90) is None) == serves
