"""kernels/attention_decode_mla_cuda_sm90.cu on the CPU: its results, the same bits in every batch,
and that the CPU finds mistakes.

The kernel's own source runs with all threads of a CTA, or of both CTAs of a cluster, and its own
host side launches it; see tests/support/cuda_on_cpu. Splits are divided between two or four SMs, so
that each CTA works on several and its pipeline wraps around.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import cuda_on_cpu, latent_calls
from tests.support.cuda_on_cpu import Mode, OnCpu
from tunefa.compile.launch import lengths
from tunefa.compile.launch.driver import DriverError
from tunefa.measure.comparison import TOLERANCE
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_decode_mla_cuda_sm90")
SM90 = archs.load("sm90")
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")

SMALL = {"BLOCK_N": 64, "num_stages": 2, "CLUSTER_SIZE": 1, "MIN_SPLIT_KEYS": 128, "MAX_SPLITS": 8}
FOUR = {"BLOCK_N": 32, "num_stages": 4}
CASES: list[tuple[str, list[int], dict[str, int]]] = [
    ("b4_h16_k300_d576_dv512_bf16", [0, 1, 300, 130], FOUR),
    ("b2_h128_k200_d576_dv512_fp16_page64", [200, 65], {}),
    ("b5_h5_k300_d192_dv128_fp16_page16", [300, 1, 0, 64, 129], {}),
    ("b3_h1_k1100_d192_dv128_bf16_page256", [1100, 31, 33], {**FOUR, "num_stages": 3}),
    ("b3_h64_k290_d320_dv256_bf16", [290, 128, 2], {}),
    ("b2_h128_k330_d192_dv128_bf16_page32", [330, 100], {"CLUSTER_SIZE": 2}),
    ("b2_h100_k260_d320_dv256_fp16_page16", [7, 260], {**FOUR, "CLUSTER_SIZE": 2}),
    ("b3_h40_q4_k200_d192_dv128_bf16_page64", [3, 200, 0], {"CLUSTER_SIZE": 1}),
    ("b2_h16_q2_k140_d192_dv128_fp16_full", [140, 1], FOUR),
]
"""Texts of workloads, lengths, and what differs from SMALL."""
MODES = (
    Mode.LAST_WARP_FIRST | Mode.LATE_READS,
    Mode.LATE_LOADS,
    Mode.LATE_LOADS | Mode.LAST_LOAD_FIRST | Mode.LAST_WARP_FIRST | Mode.LATE_READS,
)


def ran(run: OnCpu, workload: Workload, tensors: tuple[Any, ...], mode: Mode) -> list[Tensor]:
    """Returns what the kernel writes to out and lse, which are NaN before."""
    for output in tensors[3:5]:
        output.fill_(torch.nan)
    run(tensors, workload, mode, sms=4 if run.config["CLUSTER_SIZE"] == 2 else 2)
    return [output.clone() for output in tensors[3:5]]


def of(text: str, changes: dict[str, int]) -> tuple[Workload, dict[str, int]]:
    """The workload and the config, which no rule refuses."""
    workload, config = Workload.parse(f"decode_{text}_mla"), {**SMALL, **changes}
    assert KERNEL.why_not(workload, SM90) is None
    assert KERNEL.refusal(config, workload, SM90) is None
    return workload, config


@pytest.mark.parametrize(("text", "lengths", "changes"), CASES, ids=[each[0] for each in CASES])
def test_rows_are_right(
    text: str, lengths: list[int], changes: dict[str, int], tmp_path: Path
) -> None:
    """They are right in each mode, to the same bits, and those of each sequence alone are too."""
    workload, config = of(text, changes)
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    tensors = latent_calls.made(workload, lengths)
    found, *others = [ran(run, workload, tensors, mode) for mode in MODES]
    wanted = latent_calls.right(workload, tensors, lengths, workload.head_dim**-0.5)
    error = latent_calls.worst_row((found[0], found[1]), wanted)
    assert error <= 2 * TOLERANCE[workload.dtype]
    assert all(torch.equal(x, y) for other in others for x, y in zip(found, other, strict=True))
    for number in range(len(lengths)):
        alone = latent_calls.of_sequence(tensors, workload, number)
        own = ran(run, replace(workload, batch=1), alone, MODES[number % len(MODES)])
        assert all(torch.equal(x[0], y[number]) for x, y in zip(own, found, strict=True))


def test_splits_fill_the_device_where_bits_may_follow_the_batch(tmp_path: Path) -> None:
    """Two sequences with two tiles each: one split of each sequence for two SMs, two for nine."""
    keys = [700, 257]
    workload, config = of("b2_h128_k700_d192_dv128_bf16_page32", {})
    workload = replace(workload, batchvariant=True)
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    tensors = latent_calls.made(workload, keys)
    wanted = latent_calls.right(workload, tensors, keys, workload.head_dim**-0.5)
    for sms, splits in ((2, 1), (9, 2), (132, 6)):
        spec = SimpleNamespace(workload=workload, config=config, sms=sms)
        kept, _ = KERNEL.module.scratch(tensors, spec)
        assert kept[0] == (2 * 128, splits, 128)
        for output in tensors[3:5]:
            output.fill_(torch.nan)
        run(tensors, workload, MODES[0], sms=sms)
        error = latent_calls.worst_row((tensors[3], tensors[4]), wanted)
        assert error <= 2 * TOLERANCE[workload.dtype]


def test_no_launch_follows_sizes_where_splits_follow_the_batch() -> None:
    workload, config = of("b2_h128_k700_d192_dv128_bf16_page32", {})
    assert lengths.load_cache(KERNEL, workload, config, 132) is not None
    assert lengths.load_cache(KERNEL, replace(workload, batchvariant=True), config, 132) is None


def test_cases_have_every_value_of_what_is_compiled() -> None:
    for parameter in KERNEL.space.parameters[:3]:
        seen = {{**SMALL, **changes}[parameter.name] for _, _, changes in CASES}
        assert seen == set(parameter.values), parameter.name


MISTAKES = [
    ("a maximum is read before it is there", r"named_barrier_sync\(FIRST_MAXIMUM, 256\);()"),
    ("the first block is read too early", r"named_barrier_sync\(FIRST_PROBABILITIES, 256\);()"),
    ("the second block is read too early", r"named_barrier_sync\(SECOND_PROBABILITIES, 256\);()"),
    ("WGMMA does not see probabilities", r"fence_proxy_async\(\);(\s*__syncwarp)"),
    (
        "a stage is released before its values are read",
        r"wgmma_wait<0>\(\);(\s*wgmma_fence_operand\(out\);\s*release_stage)",
    ),
    ("queries are overwritten too early", r"mbarrier_wait\(shared \+ QUERY_BARRIERS \+ 8.*?\);()"),
    ("values behind the last key are not cleared", r"clear_values\(stage, work.*?\);()"),
    (
        "a part is read before it is there",
        r"mbarrier_wait\(full_barrier\(shared, stage, chunk.*?\), parity\);()",
    ),
    ("sums are read before they are there", r"named_barrier_sync\(SUMS, 256\);(\s*const float2)"),
]


@pytest.mark.parametrize(("what", "pattern"), MISTAKES, ids=[what for what, _ in MISTAKES])
def test_the_cpu_finds_mistakes(what: str, pattern: str, tmp_path: Path) -> None:
    """The data that a wait or a fence guards is wrong in some mode, or the launch fails."""
    workload, config = of("b4_h65_k300_d320_dv256_fp16", {})

    def change(source: str) -> str:
        changed, count = re.subn(pattern, r";\1", source, flags=re.DOTALL)
        assert count, "the source has no such place"
        return changed

    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path, change)
    lengths = [300, 190, 0, 0]
    tensors = latent_calls.made(workload, lengths)
    wanted = latent_calls.right(workload, tensors, lengths, workload.head_dim**-0.5)
    for mode in range(32):
        try:
            found = ran(run, workload, tensors, Mode(mode))
        except DriverError:
            return
        if not latent_calls.worst_row((found[0], found[1]), wanted) <= 2e-3:
            return
    pytest.fail(what)
