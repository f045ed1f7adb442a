"""kernels/attention_fwd_cuda_sm90.cu on the CPU: its results, and that the CPU finds mistakes.

The kernel's own source runs with all threads of a CTA, or of both CTAs of a cluster, and its own
host side launches it; see tests/support/cuda_on_cpu. The tiles are divided between two SMs, so that
each CTA works on several and its pipelines wrap around.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import cuda_on_cpu
from tests.support.cuda_on_cpu import Mode, OnCpu
from tunefa.compile.launch.driver import DriverError
from tunefa.measure import check, reference
from tunefa.measure.comparison import TOLERANCE
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_cuda_sm90")
SM90 = archs.load("sm90")
SMS = 2
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")

ONE_WARPGROUP = dict(
    DEPENDENT_LAUNCH=0, FP16_PV=0, WARPGROUPS=1, BLOCK_N=64, num_stages=2, Q_STAGES=1,
    EPILOGUE_SUBTILE=0, INTRA_WG_OVERLAP=1, PING_PONG=0, RESCALE_THRESHOLD=8,
    SPLIT_DIAGONAL_BLOCK=0, SWIZZLE_BYTES=128, P_IN_SMEM=0, CLUSTER_SIZE=1, L2_SECTION_MB=8,
)  # fmt: skip
TWO, THREE = {"WARPGROUPS": 2}, {"WARPGROUPS": 3}
EARLY = {"DEPENDENT_LAUNCH": 1}
CASES: list[tuple[str, dict[str, int]]] = [
    ("h2_q130_k200_d64_bf16_causal", {}),
    # Rows without a key, which give 0 and -inf; a single query row.
    ("h2_q200_k150_d128_bf16_causal", {**THREE, **EARLY, "PING_PONG": 1, "EPILOGUE_SUBTILE": 2}),
    ("h4_kv4_q1_k65_d16_fp16_causal", {"RESCALE_THRESHOLD": 0}),
    # Blocks of several tiles are in flight.
    ("b2_h4_kv2_q250_k70_d64_bf16_causal", {**TWO, "num_stages": 3, "Q_STAGES": 2}),
    ("b2_h2_kv1_q140_k60_d64_bf16_full", {"num_stages": 4, "EPILOGUE_SUBTILE": 1}),
    # BLOCK_N that is no power of two; products that do not overlap the softmax.
    (
        "h2_q130_k200_d64_fp16_full",
        {**TWO, "BLOCK_N": 80, "Q_STAGES": 2, "PING_PONG": 1, "RESCALE_THRESHOLD": 0},
    ),
    ("h4_kv2_q200_k300_d128_bf16_causal", {**TWO, "INTRA_WG_OVERLAP": 0, "EPILOGUE_SUBTILE": 1}),
    ("h2_q150_k130_d64_bf16_full", {**THREE, "INTRA_WG_OVERLAP": 0, "Q_STAGES": 2}),
    # The diagonal block is split.
    (
        "h3_q260_k300_d128_fp16_causal",
        {**TWO, "SPLIT_DIAGONAL_BLOCK": 1, "PING_PONG": 1, "BLOCK_N": 128, "Q_STAGES": 2},
    ),
    # Swizzles of 64 and 32 bytes; V is wider or narrower than K.
    ("h4_kv2_q200_k230_d96_bf16_causal", {**TWO, "SWIZZLE_BYTES": 64, "BLOCK_N": 112}),
    ("h2_q150_k300_d80_bf16_full", {**TWO, "SWIZZLE_BYTES": 32, "BLOCK_N": 96}),
    ("h4_kv1_q70_k170_d64_dv128_bf16_full", {"BLOCK_N": 48, "num_stages": 3}),
    ("h2_q100_k170_d192_dv72_bf16_causal", {"EPILOGUE_SUBTILE": 2}),
    ("h2_q140_k140_d256_fp16_causal", {**TWO, "EPILOGUE_SUBTILE": 2, "PING_PONG": 1}),
    # Probabilities through shared memory.
    ("h2_q260_k600_d64_bf16_causal", {**TWO, "BLOCK_N": 256, "P_IN_SMEM": 1}),
    ("h2_q200_k400_d64_fp16_full", {**THREE, "BLOCK_N": 176, "P_IN_SMEM": 1, "PING_PONG": 1}),
    # Clusters: their tiles see different numbers of blocks; one cluster has a tile without rows.
    ("h4_kv2_q200_k300_d96_bf16_causal", {**TWO, "CLUSTER_SIZE": 2, "Q_STAGES": 2}),
    ("b2_h3_kv1_q70_k200_d64_bf16_full", {**EARLY, "CLUSTER_SIZE": 2, "num_stages": 3}),
    (
        "h2_kv1_q260_k260_d128_bf16_causal",
        {**TWO, "CLUSTER_SIZE": 2, "SPLIT_DIAGONAL_BLOCK": 1, "EPILOGUE_SUBTILE": 1},
    ),
    # e4m3: V^T, accumulation in two levels beyond 512 keys, queries in registers (head_dim 256).
    (
        "h2_q200_k1200_d64_e4m3_causal",
        {**TWO, "BLOCK_N": 160, "EPILOGUE_SUBTILE": 1, "SWIZZLE_BYTES": 64, "Q_STAGES": 2},
    ),
    (
        "h4_kv2_q130_k600_d128_e4m3_full",
        {**TWO, "BLOCK_N": 96, "EPILOGUE_SUBTILE": 1, "CLUSTER_SIZE": 2, "PING_PONG": 1},
    ),
    ("h2_q100_k1100_d256_dv64_e4m3_full", {"EPILOGUE_SUBTILE": 1, "RESCALE_THRESHOLD": 0}),
    # V in fp16.
    ("h2_q130_k200_d64_e4m3_full", {"FP16_PV": 1, "SWIZZLE_BYTES": 64}),
    (
        "h2_q200_k700_d64_e4m3_causal",
        {**TWO, "FP16_PV": 1, "BLOCK_N": 144, "SWIZZLE_BYTES": 64, "Q_STAGES": 2},
    ),
    (
        "b2_h4_kv2_q130_k300_d128_e4m3_full",
        {**TWO, **EARLY, "FP16_PV": 1, "BLOCK_N": 112, "EPILOGUE_SUBTILE": 2, "CLUSTER_SIZE": 2},
    ),
    ("h2_q100_k400_d256_dv64_e4m3_full", {"FP16_PV": 1, "EPILOGUE_SUBTILE": 1}),
    ("b2_h4_q200_k60_d192_e4m3_full", {"FP16_PV": 1, "Q_STAGES": 2}),
    # V in e4m3, on one level.
    (
        "h2_q130_k1200_d128_e4m3_causal_fast",
        {**TWO, "BLOCK_N": 96, "EPILOGUE_SUBTILE": 1, "PING_PONG": 1},
    ),
]
MODES = (
    # The producer overwrites a slot as early as it may, and the slot is read as late as possible.
    Mode.LAST_WARP_FIRST | Mode.LATE_READS,
    # A slot is filled as late as possible, and consumers read it as early as they may.
    Mode.LATE_LOADS,
    Mode.LATE_LOADS | Mode.LAST_LOAD_FIRST | Mode.LAST_WARP_FIRST | Mode.LATE_READS,
)


def modes_of(workload: Workload) -> list[Mode]:
    """A causal tile's warpgroups skip blocks that others need. A lane then releases a slot for its
    warp right after a wait, which all lanes must pass together: the compiler makes them reconverge,
    but no instruction of the source does."""
    apart = Mode(0) if workload.causal else Mode.LANES_APART
    return [mode | apart for mode in MODES]


def config_of(changes: dict[str, int]) -> dict[str, int]:
    return {**ONE_WARPGROUP, **changes}


def tensors_of(workload: Workload) -> tuple[Any, ...]:
    """Tensors for which every second row has large scores, which grow towards the first key. The
    kernel reads that key last, so the maxima grow by more than RESCALE_THRESHOLD."""
    made = check.tensors(workload, "cpu", seed=0)
    rows, keys = torch.ones(workload.seqlen_q), torch.linspace(2.0, 0.5, workload.seqlen_k)
    rows[::2] = 4.0
    for tensor, factor in zip(made, (rows, keys), strict=False):
        tensor.copy_((tensor.float() * factor[:, None]).to(tensor.dtype))
    return made


def ran(run: OnCpu, workload: Workload, made: tuple[Any, ...], mode: Mode) -> list[Tensor]:
    """Returns what the kernel writes to out and lse, which are NaN before."""
    for output in made[3:5]:
        output.fill_(float("nan"))
    run(made, workload, mode, sms=SMS)
    return [output.clone() for output in made[3:5]]


def worst_row(workload: Workload, made: tuple[Any, ...]) -> float:
    """Returns the largest ||out - reference|| / ||reference|| of a row; large if a row without a
    key is not 0."""
    scale = workload.head_dim**-0.5
    right, _ = reference.attention(check.inputs(workload, made, scale), torch.float32)
    off = (made[3].float() - right).norm(dim=-1)
    return float((off / right.norm(dim=-1).clamp_min(1e-30)).nan_to_num(float("inf")).max())


def test_cases_have_every_value_of_every_parameter() -> None:
    configs = [config_of(changes) for _, changes in CASES]
    for parameter in KERNEL.space.parameters:
        if parameter.name not in ("BLOCK_N", "num_stages", "L2_SECTION_MB"):
            seen = {config[parameter.name] for config in configs}
            assert seen == set(parameter.values), parameter.name


@pytest.mark.parametrize(("text", "changes"), CASES, ids=[text for text, _ in CASES])
def test_results_are_right(text: str, changes: dict[str, int], tmp_path: Path) -> None:
    """The results are right in each mode, to the same bits."""
    workload, config = Workload.parse(text), config_of(changes)
    assert KERNEL.why_not(workload, SM90) is None
    assert KERNEL.refusal(config, workload, SM90) is None
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    made = tensors_of(workload)
    first, *others = [ran(run, workload, made, mode) for mode in modes_of(workload)]
    found = check.compare(workload, made, workload.head_dim**-0.5, torch.float32)
    assert found.passed, found.reason
    assert worst_row(workload, made) <= TOLERANCE[workload.dtype]
    for other in others:
        assert all(map(torch.equal, first, other))


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("b2_h4_kv2_q75_k90_d40_dv24_bf16_causal", {}),
        ("b2_h4_kv2_q75_k170_d48_dv32_e4m3_causal", {"FP16_PV": 1, "SWIZZLE_BYTES": 64}),
        ("b2_h4_kv2_q75_k170_d48_dv32_e4m3_causal", {"EPILOGUE_SUBTILE": 1, "SWIZZLE_BYTES": 64}),
    ],
)
def test_layouts_are_strides_and_nothing_is_written_beside_the_output(
    text: str, changes: dict[str, int], tmp_path: Path
) -> None:
    workload = Workload.parse(text)
    assert KERNEL.refusal(config_of(changes), workload, SM90) is None
    run = cuda_on_cpu.compiled(KERNEL, workload, config_of(changes), tmp_path)
    made = tensors_of(workload)
    right = ran(run, workload, made, MODES[0])

    def part_of_more(x: Tensor) -> Tensor:
        batch, heads, seqlen, head_dim = x.shape
        shape = (batch, seqlen + 8, heads + 3, head_dim + 32)
        more = torch.full(shape, 7.0).to(x.dtype).transpose(1, 2)
        more[:, 1 : heads + 1, 3 : seqlen + 3, 16 : head_dim + 16].copy_(x)
        return more[:, 1 : heads + 1, 3 : seqlen + 3, 16 : head_dim + 16]

    others = [part_of_more(x) for x in made[:4]]
    lse = torch.full((2 * 4 * 75 + 64,), 7.0)
    within = lse[32:-32].view(2, 4, 75)
    assert KERNEL.module.is_aligned(others)
    run((*others, within, *made[5:]), workload, sms=SMS)
    assert torch.equal(others[3], right[0]) and torch.equal(within, right[1])
    assert bool((lse[:32] == 7).all()) and bool((lse[-32:] == 7).all())
    around = others[3]._base
    assert around is not None
    written = torch.zeros_like(around, dtype=torch.bool).transpose(1, 2)
    written[:, 1:5, 3:78, 16 : 16 + workload.head_dim_v] = True
    assert bool((around.transpose(1, 2)[~written] == 7).all())


# ------------------------------------------------------------------------------------- mistakes

ONE_CTA = ("h2_q260_k300_d64_bf16_causal", {**TWO, "BLOCK_N": 80, "num_stages": 3})
PAIR_OF_CTAS = ("h4_kv2_q200_k200_d64_bf16_full", {**TWO, "CLUSTER_SIZE": 2})
WRONG = "the result is wrong"
MISTAKES = {
    "the wait for K is missing": (
        ONE_CTA,
        r"(?<!\.)\bk\.wait_\w+\([^;]*\);",
        "",
        "wrong|all of the 1",
    ),
    "try_wait is not repeated": (ONE_CTA, "@done bra DONE;", "bra DONE;", WRONG),
    "mbarrier.arrive is missing": (
        *(ONE_CTA, r"mbarrier\.arrive\.shared::cta\.b64 _, \[%0\];", ""),
        r"threads 256 to 256 of CTA 0 wait for the end of a phase of parity 0 of the mbarrier",
    ),
    "wgmma.wait_group is missing": (
        ONE_CTA,
        r"wgmma\.wait_group\.sync\.aligned %0;",
        "",
        "products that it did not wait for",
    ),
    "wgmma.fence is missing": (
        ONE_CTA,
        r"wgmma\.fence\.sync\.aligned;",
        "",
        "wgmma.fence",
    ),
    "fence.proxy.async is missing": (ONE_CTA, r"fence\.proxy\.async\.shared::cta;", "", WRONG),
    "bar.sync is missing": (ONE_CTA, "bar.sync %0, %1;", "", WRONG),
    "the wait for TMA stores is missing": (
        *(ONE_CTA, r"cp\.async\.bulk\.wait_group\.read 0;", ""),
        "TMA stores may not have read shared memory",
    ),
    "the descriptor has another swizzle": (
        ONE_CTA,
        r"(WIDTH == 128 \?) 1 (: WIDTH == 64 \?) 2",
        r"\1 2 \2 1",
        "outside of its",
    ),
    "barrier.cluster.wait is missing": (
        *(PAIR_OF_CTAS, r"barrier\.cluster\.wait\.acquire\.aligned;", ""),
        "no mbarrier was initialised",
    ),
    "one CTA of two is told that a slot is empty": (
        *(PAIR_OF_CTAS, r"(mapa\.shared::cluster\.u32 \w+, %0), %1;", r"\1, 0;"),
        "deadlock",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake: str, tmp_path: Path) -> None:
    """A mistake in the source makes the result wrong, or the launch fails with a message."""
    (text, changes), pattern, replacement, sign = MISTAKES[mistake]

    def with_mistake(source: str) -> str:
        changed, count = re.subn(pattern, replacement, source)
        assert count > 0, f"the kernel has no {pattern}"
        return changed

    workload = Workload.parse(text)
    run = cuda_on_cpu.compiled(KERNEL, workload, config_of(changes), tmp_path, with_mistake)
    made = tensors_of(workload)
    signs = []
    for mode in MODES:
        signs.append(sign_of(run, workload, made, mode))
        if re.search(sign, signs[-1]):
            return
    pytest.fail(f"{mistake}: {signs}")


def sign_of(run: OnCpu, workload: Workload, made: tuple[Any, ...], mode: Mode) -> str:
    try:
        ran(run, workload, made, mode)
    except DriverError as error:
        return str(error)
    found = check.compare(workload, made, workload.head_dim**-0.5, torch.float32)
    return "" if found.passed else WRONG
