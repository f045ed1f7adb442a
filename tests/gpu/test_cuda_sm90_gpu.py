"""attention_fwd_cuda_sm90 on the device: widths that only it has, each way in and out of a tile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.gpu_kernels import judge, judge_random_configs
from tunefa.measure import check, launches
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL, SM90 = kernels.load("attention_fwd_cuda_sm90"), Target.named("sm90")


def _is_served() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _is_served(), reason="needs a Hopper GPU"),
]

CONFIG: dict[str, Any] = dict(
    DEPENDENT_LAUNCH=0, FP16_PV=0, WARPGROUPS=2, BLOCK_N=128, num_stages=2, Q_STAGES=1,
    EPILOGUE_SUBTILE=0, INTRA_WG_OVERLAP=1, PING_PONG=0, RESCALE_THRESHOLD=8,
    SPLIT_DIAGONAL_BLOCK=0, SWIZZLE_BYTES=128, P_IN_SMEM=0, CLUSTER_SIZE=1, L2_SECTION_MB=8,
)  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    ("h4_kv2_q200_k333_d128_e4m3_full", dict(FP16_PV=1)),
    ("h4_kv2_q1000_d128_e4m3", dict(FP16_PV=1, BLOCK_N=160, EPILOGUE_SUBTILE=2, CLUSTER_SIZE=2)),
    ("b2_h4_q200_k60_d256_dv64_e4m3_full", dict(FP16_PV=1, BLOCK_N=64, num_stages=3)),
    ("b2_h4_q1000_d256_e4m3", dict(FP16_PV=1, BLOCK_N=64, EPILOGUE_SUBTILE=1, PING_PONG=1)),
    ("h2_kv1_q200_k333_d128_full", {}),
    ("h2_kv1_q200_k333_d128_full", dict(DEPENDENT_LAUNCH=1)),
    ("b8_h16_q900_k1000_d128", dict(DEPENDENT_LAUNCH=1, Q_STAGES=2, PING_PONG=1)),
    ("b8_h8_q1000_d256", dict(DEPENDENT_LAUNCH=1, BLOCK_N=64, EPILOGUE_SUBTILE=2)),
    ("b4_h4_kv2_q900_d128_e4m3", dict(DEPENDENT_LAUNCH=1, BLOCK_N=96, EPILOGUE_SUBTILE=1)),
    ("h2_kv1_q200_k333_d128_full", dict(BLOCK_N=96, EPILOGUE_SUBTILE=1)),
    ("h4_kv2_q1000_k777_d64", dict(WARPGROUPS=3, PING_PONG=1, num_stages=3)),
    ("h4_q1000_d128", dict(BLOCK_N=176)),
    ("h4_q1000_d128_full", dict(BLOCK_N=176, PING_PONG=1)),
    ("h4_q1000_d128_full", dict(BLOCK_N=192)),
    ("h4_q1000_d128", dict(WARPGROUPS=3, BLOCK_N=112, INTRA_WG_OVERLAP=0)),
    ("b4_h8_q1300_k1333_d128", dict(Q_STAGES=2, PING_PONG=1, SPLIT_DIAGONAL_BLOCK=1)),
    ("b8_h16_q1300_d128_full", dict(WARPGROUPS=3, BLOCK_N=80, num_stages=3, Q_STAGES=2,
                                    PING_PONG=1)),
    # Some tiles for each program, each way from one to the next.
    ("b8_h16_q1300_d128", {}),
    ("b8_h16_q1300_k1333_d64_full", dict(INTRA_WG_OVERLAP=0)),
    ("b8_h16_q1300_d128", dict(INTRA_WG_OVERLAP=0, Q_STAGES=2)),
    ("b8_h16_q1300_d128_full", dict(WARPGROUPS=1)),
    ("b8_h16_q1300_d96", dict(WARPGROUPS=3, BLOCK_N=80, EPILOGUE_SUBTILE=1, PING_PONG=1)),
    ("b8_h16_q1300_d128", dict(BLOCK_N=96, Q_STAGES=2, EPILOGUE_SUBTILE=2)),
    ("h3_q500_d72", dict(WARPGROUPS=3, BLOCK_N=112)),
    ("h3_q500_d80", dict(SWIZZLE_BYTES=32)),
    ("h3_q500_d96_fp16", dict(SWIZZLE_BYTES=64, BLOCK_N=144)),
    ("b8_h16_q2048_d96", dict(WARPGROUPS=3, BLOCK_N=96, Q_STAGES=2, EPILOGUE_SUBTILE=1, PING_PONG=1,
                              SPLIT_DIAGONAL_BLOCK=1, SWIZZLE_BYTES=64)),
    ("h3_q500_d160_full", dict(SWIZZLE_BYTES=64, BLOCK_N=144)),
    ("b4_h8_q1300_k1000_d192_full", dict(BLOCK_N=80, EPILOGUE_SUBTILE=1)),
    ("b4_h8_q1300_k1333_d256", dict(BLOCK_N=64, EPILOGUE_SUBTILE=2, SPLIT_DIAGONAL_BLOCK=1)),
    ("b8_h8_q1300_k1333_d256_full", dict(BLOCK_N=64, EPILOGUE_SUBTILE=2, PING_PONG=1)),
    ("b2_h3_q1_k700_d128", dict(WARPGROUPS=1)),
    ("h2_q64_d16_full", dict(WARPGROUPS=1, BLOCK_N=64)),
    ("h2_q130_k100_d104_dv64", dict(BLOCK_N=64)),
]  # fmt: skip
# Pairs of tiles of one head, and of heads of a group; one that sees fewer keys; odd counts, with
# a tile behind the last row; blocks whose second half is behind the last key; many for a cluster.
CLUSTERED: list[tuple[str, dict[str, Any]]] = [
    ("h2_q200_k333_d128_full", {}),
    ("b8_h3_q900_d128", dict(DEPENDENT_LAUNCH=1)),
    ("h2_q200_k333_d128", dict(BLOCK_N=48)),
    ("h2_q700_k30_d64", dict(BLOCK_N=64)),
    ("h3_q1300_d64", dict(WARPGROUPS=3, PING_PONG=1, num_stages=3)),
    ("h4_kv2_q1000_k777_d64_full", dict(WARPGROUPS=3, num_stages=3, Q_STAGES=2)),
    ("b2_h9_kv3_q1300_k1500_d128", dict(Q_STAGES=2, PING_PONG=1, SPLIT_DIAGONAL_BLOCK=1)),
    ("b8_h16_q1300_d128", dict(BLOCK_N=48, PING_PONG=1)),
    ("b8_h16_q1300_k1333_d128_full", dict(WARPGROUPS=3, BLOCK_N=80, num_stages=3, Q_STAGES=2,
                                          PING_PONG=1)),
    ("b4_h24_kv1_q300_k999_d128", dict(WARPGROUPS=1, EPILOGUE_SUBTILE=1)),
    ("b8_h15_kv5_q1300_d128", dict(BLOCK_N=96, INTRA_WG_OVERLAP=0, EPILOGUE_SUBTILE=2)),
    ("b8_h16_q1300_d80", dict(WARPGROUPS=3, BLOCK_N=112, Q_STAGES=2, PING_PONG=1)),
    ("b3_h7_q1300_d80_full", dict(SWIZZLE_BYTES=32, BLOCK_N=80)),
    ("b8_h16_q2048_d96_fp16", dict(WARPGROUPS=3, BLOCK_N=112, Q_STAGES=2, PING_PONG=1,
                                   SWIZZLE_BYTES=64)),
    ("b4_h8_kv4_q1300_k1333_d256", dict(BLOCK_N=64, EPILOGUE_SUBTILE=2, PING_PONG=1)),
    ("b8_h8_q1300_k1333_d256_full", dict(BLOCK_N=64, EPILOGUE_SUBTILE=2, PING_PONG=1)),
]  # fmt: skip
# Chunks of probabilities of each width, alone and several; half of a block without any.
P_IN_SMEM: list[tuple[str, dict[str, Any]]] = [
    ("b8_h16_q1300_k1333_d128_full", dict(WARPGROUPS=3, PING_PONG=1)),
    ("b8_h16_q1300_d64", dict(WARPGROUPS=3, BLOCK_N=160, EPILOGUE_SUBTILE=1,
                              SPLIT_DIAGONAL_BLOCK=1)),
    ("b8_h16_q1300_k1333_d64_full", dict(WARPGROUPS=3, BLOCK_N=192, Q_STAGES=2, PING_PONG=1)),
    ("h4_kv2_q1000_k777_d64", dict(BLOCK_N=256)),
    ("h3_q500_d96_fp16", dict(WARPGROUPS=3, SWIZZLE_BYTES=64, BLOCK_N=144)),
    ("b8_h15_kv5_q1300_d128", dict(WARPGROUPS=3, BLOCK_N=112, PING_PONG=1, CLUSTER_SIZE=2)),
    ("b8_h16_q1300_k1333_d64_full", dict(WARPGROUPS=3, BLOCK_N=176, PING_PONG=1, CLUSTER_SIZE=2)),
]  # fmt: skip
# Chunks of V^T of each width, sums put aside once and often or never, each way in and out.
E4M3: list[tuple[str, dict[str, Any]]] = [
    ("h2_kv1_q200_k333_d128_full", {}),
    ("h2_kv1_q200_k3333_d128_full", dict(BLOCK_N=96, WARPGROUPS=3)),
    ("b8_h16_q1300_d128", dict(BLOCK_N=224, Q_STAGES=2, SPLIT_DIAGONAL_BLOCK=1)),
    ("b8_h16_q1300_k2333_d64", dict(WARPGROUPS=3, BLOCK_N=160, PING_PONG=1, SWIZZLE_BYTES=64)),
    ("b8_h16_q1300_k2333_d64_full", dict(BLOCK_N=192, INTRA_WG_OVERLAP=0, CLUSTER_SIZE=2)),
    ("b4_h8_q1300_k3333_d256", dict(BLOCK_N=64, PING_PONG=1, SPLIT_DIAGONAL_BLOCK=1,
                                    CLUSTER_SIZE=2)),
    ("b4_h8_q1300_k3333_d256_full", dict(BLOCK_N=64, RESCALE_THRESHOLD=0)),
    ("b4_h8_kv2_q1300_k3333_d192", dict(BLOCK_N=64, INTRA_WG_OVERLAP=0)),
    ("b8_h16_q1300_k2000_d96", dict(WARPGROUPS=3, BLOCK_N=96, SWIZZLE_BYTES=32, CLUSTER_SIZE=2)),
    ("b2_h3_q1_k1700_d128", dict(WARPGROUPS=1, BLOCK_N=256)),
    ("h2_q64_d16_full", dict(WARPGROUPS=1, BLOCK_N=64)),
    ("h2_q130_k100_d112_dv64", dict(BLOCK_N=64)),
    ("b3_h4_q700_k900_d32_dv144", dict(BLOCK_N=160)),
]  # fmt: skip
CASES += [(f"{text}_e4m3", {"EPILOGUE_SUBTILE": 1, **changes}) for text, changes in E4M3]
CASES += [(text, {**changes, "CLUSTER_SIZE": 2}) for text, changes in CLUSTERED]
CASES += [(text, {**changes, "P_IN_SMEM": 1}) for text, changes in P_IN_SMEM]


@pytest.mark.parametrize(("text", "changes"), CASES)
def test_widths_and_ways_out(text: str, changes: dict[str, Any]) -> None:
    case = Case(KERNEL, Workload.parse(text), SM90)
    config = {**CONFIG, **changes}
    assert case.refusal(config) is None
    judge(case, config, Gate("cuda"))


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [*((d, "bf16") for d in range(16, 257, 24)), *((d, "e4m3") for d in range(16, 257, 48))],
)
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("cluster", [1, 2])
def test_the_default_of_each_head_dim(head_dim: int, dtype: str, mask: str, cluster: int) -> None:
    workload = Workload.parse(f"b12_h18_kv6_q777_k1000_d{head_dim}_{dtype}_{mask}")
    case = Case(KERNEL, workload, SM90)
    judge(case, {**case.default(), "CLUSTER_SIZE": cluster}, Gate("cuda"))


@pytest.mark.parametrize("text", ["q4096_d72", "q4096_d120_fp16_full", "q4096_d200_dv64"])
def test_random_configs(text: str) -> None:
    judge_random_configs(Workload.parse(text), 10)


@pytest.mark.parametrize("text", ["b32_h16_q512_d128", "h2_q200_d64_full", "b4_h8_q1000_d256"])
def test_a_call_waits_for_the_one_before(text: str) -> None:
    """Each output is the next call's queries, also in a graph, whose launches overlap."""
    workload = Workload.parse(text)
    case = Case(KERNEL, workload, SM90)
    config = {**case.default(), "DEPENDENT_LAUNCH": 1}
    made = check.tensors(workload, "cuda")
    spare = torch.empty_like(made[0])
    chain = [(spare, made[3]), (made[3], spare)]
    calls = [
        launches.launch(case, config, (q, *made[1:3], out, *made[4:]))
        for q, out in [(made[0], spare), *chain * 10]
    ]
    for call in calls:
        call()
        torch.cuda.synchronize()
    expected = spare.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(5):
        for each in (spare, made[3]):
            each.fill_(float("nan"))
        graph.replay()
        assert torch.equal(spare, expected)
