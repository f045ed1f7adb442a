"""kernels/cuda/two_level_sums.cuh on the CPU: large sums of e4m3 are promoted, and none is lost.

Sums on the CPU are in fp32, so what tensor cores would cut off does not show here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import cuda_on_cpu
from tests.support.cuda_on_cpu import Mode
from tunefa.measure import check
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_cuda_sm90")
SM90 = archs.load("sm90")
NARROW = {"FP16_PV": 0, "EPILOGUE_SUBTILE": 1, "SWIZZLE_BYTES": 64, "PING_PONG": 0}
ONE, TWO = ({"WARPGROUPS": count, "num_stages": 2, "Q_STAGES": 1} for count in (1, 2))
HAS_PROMOTED = "rows.promoted == rows.NOT_PROMOTED"


@pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("h2_q130_k2100_d64_e4m3_full", {**TWO, "BLOCK_N": 96}),
        # Promoted sums in global memory.
        ("h2_q100_k2100_d32_dv144_e4m3_causal", {**ONE, "BLOCK_N": 64, "INTRA_WG_OVERLAP": 0}),
        ("h2_q100_k2100_d32_dv144_e4m3_full", {**TWO, "BLOCK_N": 64}),
    ],
)
def test_large_sums_are_promoted(text: str, changes: dict[str, int], tmp_path: Path) -> None:
    """Sums of positive values are, again and again, those of normal values are not: a kernel that
    forgets promoted sums is wrong for the first alone."""
    workload = Workload.parse(text)
    config = {**KERNEL.default(workload, SM90), **NARROW, **changes}
    assert KERNEL.refusal(config, workload, SM90) is None
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    (tmp_path / "forgets").mkdir()
    forgets = cuda_on_cpu.compiled(
        *(KERNEL, workload, config, tmp_path / "forgets"),
        lambda source: source.replace(HAS_PROMOTED, "true"),
    )
    for is_positive in (False, True):
        made = check.tensors(workload, "cpu", seed=0)
        if is_positive:
            made[2].copy_((made[2].float().abs() + 0.5).to(made[2].dtype))
        for kernel in (run, forgets):
            kernel(made, workload, Mode.LATE_LOADS, sms=2)
            found = check.compare(workload, made, workload.head_dim**-0.5, torch.float32)
            assert found.passed == (kernel is run or not is_positive), found.reason
