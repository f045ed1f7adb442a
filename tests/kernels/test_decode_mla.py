"""Latent attention over a cache: attention_decode_mla_triton in Triton's interpreter, with ragged
lengths, shuffled pages and NaN, and what both kernels' compilers need.

test_decode_mla_on_cpu.py has the numbers of attention_decode_mla_cuda_sm90."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import interpreted_latent, processes
from tunefa.compile import languages
from tunefa.costmodel.occupancy import occupancy
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Case

KERNEL = "attention_decode_mla_triton"
TRITON = languages.load("triton")


@pytest.mark.slow
def test_rows_are_right_and_have_the_same_bits_alone() -> None:
    if reason := TRITON.why_no_interpreter():
        pytest.skip(reason)
    found = processes.interpreted("interpreted_latent")
    assert len(found) == len(interpreted_latent.CASES)
    wrong = [each for each in found if not (each["error"] < 2e-3 and each["same_bits"])]
    assert not wrong, wrong


DEFAULTS: list[tuple[str, str, int]] = [
    ("b16_h16_k8192_bf16_page64", "sm80", 0),
    ("b16_h128_k8192_fp16", "sm80", 0),
    ("b16_h16_k8192_bf16", "sm90", 0),
    ("b16_h16_k8192_bf16_page64", "sm90", 0),
    # WGMMA with 64 rows of output: 128 of its registers are a thread's, beside addresses.
    ("b16_h128_k8192_bf16_page64", "sm90", 1024),
    ("b16_h64_q2_k8192_bf16_page16", "sm90", 1024),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "arch", "spilled"), DEFAULTS)
def test_defaults_fit(text: str, arch: str, spilled: int) -> None:
    """Shared memory is what the space says: the block of the cache is there once."""
    if why := TRITON.why_no_compiler(archs.load(arch)):
        pytest.skip(why)
    case = Case.from_names(KERNEL, f"decode_{text}_mla", arch)
    config = case.default()
    made = languages.load("triton").compile(case, config).inspect()
    assert made.smem_bytes == case.estimate(config)["smem_bytes"] + _of_tables(case, config)
    assert (made.spill_bytes or 0) <= spilled
    fits = occupancy(
        archs.gpu(case.arch), made.registers or 0, made.smem_bytes, 32 * config["num_warps"]
    )
    assert fits.blocks_per_sm >= config["CTAS_PER_SM"]


def _of_tables(case: Case, config: dict[str, Any]) -> int:
    """Bytes of the entries of the block table that Triton loads ahead."""
    if case.workload.page_size is None or config["num_stages"] < 3:
        return 0
    return int(8 * config["BLOCK_N"] * (config["num_stages"] // 2))


OF_CUDA: list[tuple[str, dict[str, int]]] = [
    ("b16_h128_k8192_bf16_page64", {}),
    ("b16_h128_k8192_bf16_page16", {"CLUSTER_SIZE": 2}),
    ("b16_h16_k8192_fp16", {}),
    ("b16_h16_q4_k8192_bf16_page64", {"BLOCK_N": 32, "num_stages": 4}),
]


@pytest.mark.parametrize(("text", "changes"), OF_CUDA)
def test_a_tile_fits_in_the_registers_of_two_warpgroups(text: str, changes: dict[str, int]) -> None:
    """NVRTC also refuses WGMMA that the compiler makes wait for each product."""
    language = languages.load("cuda")
    if why := language.why_no_compiler(archs.load("sm90")):
        pytest.skip(why)
    case = Case.from_names("attention_decode_mla_cuda_sm90", f"decode_{text}_mla", "sm90")
    config = {**case.default(), **changes}
    assert case.refusal(config) is None
    made = language.compile(case, config).inspect()
    assert (made.registers, made.spill_bytes) == (168, 0)
    assert made.smem_bytes == case.estimate(config)["smem_bytes"]
