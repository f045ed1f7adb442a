"""The two-pass Hopper backward in CUDA C++, as far as no numbers are needed: what it serves, what
its rules refuse, what its host side passes, and what the compiler says of its configs."""

from __future__ import annotations

import random

import pytest

from tests.support import launch_specs
from tests.support.backward_on_cpu import inputs
from tunefa.compile import languages
from tunefa.compile.languages import cuda
from tunefa.compile.launch.steps import new_scratch
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_two_pass_cuda_sm90")
SM90 = Target.named("sm90")
needs_nvrtc = pytest.mark.skipif(
    languages.load("cuda").why_no_compiler(archs.load("sm90")) is not None, reason="needs NVRTC"
)


CLUSTERS = {"CLUSTER_SIZE1": 2, "BLOCK_N2": 96, "K_STAGES2": 2, "V_STAGES2": 1}


def case_of(text: str) -> Case:
    return Case(KERNEL, Workload.parse(f"bwd_{text}"), SM90)


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        ("d192_fp16_full", {"P_BYTES1": 2}, "P_BYTES1 2 needs bf16"),
        ("d192_full", {"Q_STAGES1": 2, "DO_STAGES1": 3}, "DO_STAGES1 must not exceed"),
        ("d192_full", {"BLOCK_N2": 96, "V_STAGES2": 2}, "the query pass must not exceed"),
        (
            "d192_full",
            {"BLOCK_N2": 112, "K_STAGES2": 2, "V_STAGES2": 1},
            "accumulators of the query pass must leave",
        ),
        ("d192_full", {"BLOCK_M1": 96}, "the key pass must not exceed"),
        (
            "d192_full",
            {"BLOCK_M1": 96, "Q_STAGES1": 2, "P_STAGES1": 1, "PERSISTENT1": 0},
            "accumulators of the key pass must leave",
        ),
        ("d192_full", {"KV_IN_REGISTERS1": 1}, "PERSISTENT1 needs K and V in registers"),
        ("d192_full", {"PERSISTENT2": 0}, "PERSISTENT1 needs PERSISTENT2"),
        ("d192_full", {"PERSISTENT1": 0, "PERSISTENT2": 0}, "DEPENDENT_LAUNCH needs PERSISTENT2"),
        ("d192_full", {"L2_SECTION_HEADS": 4}, "needs a causal mask or a window"),
        ("d256_full", {"KV_IN_REGISTERS1": 2}, "accumulators of the key pass must leave"),
    ],
)
def test_what_cannot_work_is_refused(text: str, changes: dict[str, int], reason: str) -> None:
    case = case_of(text + "_q4096")
    assert case.refusal(case.default()) is None
    assert reason in (case.refusal({**case.default(), **changes}) or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("d128_full", "head dimensions above 128"),
        ("d160_dv192_full", "head dimension of V that is not above"),
        ("d192_causal_softcap", "soft-capped"),
        ("d192_causal_varlen", "packed sequences"),
        ("d192_fp32_causal", "bf16 and fp16 only"),
        ("d180_causal", "multiples of 8"),
    ],
)
def test_what_it_does_not_serve_is_left_to_other_kernels(text: str, reason: str) -> None:
    assert reason in (case_of(text + "_q4096").why_not() or "")


def test_it_adds_nothing_in_memory() -> None:
    case = case_of("q4096_d192_causal_deterministic")
    assert case.why_not() is None
    assert KERNEL.module.unordered(case.workload, case.default()) == ()
    assert not hasattr(KERNEL.module, "postprocess")


@pytest.mark.parametrize("block_m", [48, 64, 80, 96])
def test_sums_of_rows_have_whole_blocks(block_m: int) -> None:
    """Blocks of the key pass may end behind the last tile of the query pass, and tiles behind the
    last block. TMA copies rows whose addresses are multiples of 16 bytes."""
    for seqlen_q in (1, 80, 128, 129, 200, 385):
        rows = KERNEL.module.padded_rows(seqlen_q, {"BLOCK_M1": block_m})
        assert rows % 16 == 0 and rows - seqlen_q < 128 + block_m
        for block in (128, block_m):
            assert rows >= -(-seqlen_q // block) * block


@pytest.mark.parametrize("mask", ["causal", "full", "causal_w100", "full_w9_a70"])
def test_costs_are_the_steps_of_tiles(mask: str) -> None:
    """A cluster has twice the keys of a CTA; each tile has one step at least."""
    case = case_of(f"b2_h4_kv2_q200_k330_d192_{mask}")
    config = {**case.default(), **CLUSTERS, "L2_SECTION_HEADS": 1}
    w, rows, keys = case.workload, range(200), range(330)
    left, right = (10**6 if side is None else side for side in w.band)
    seen = {(i, j) for i in rows for j in keys if -left <= j - (i + 130) <= right}
    of_keys = []
    for key in range(0, 330, 128):
        blocks = {i // 64 for i, j in seen if key <= j < key + 128}
        of_keys.append(2 * max(1, len(blocks)) + 2)
    assert KERNEL.module.key_costs(w, config) == of_keys * 4
    of_queries = []  # of the query heads of a KV head
    for row in (128, 0):
        blocks = {j // 96 for i, j in seen if row <= i < row + 128}
        of_queries += 2 * [max(1, len(blocks)) + 1]
    assert KERNEL.module.query_costs(w, config) == of_queries * 4


def test_the_lists_of_clusters_have_all_tiles() -> None:
    case = case_of("b2_h4_kv2_q200_k330_d192_bf16_causal")
    config = {**case.default(), **CLUSTERS}
    spec = launch_specs.spec_of(KERNEL, case.workload, config, sms=7)
    tensors = [*inputs(case.workload)[0]]
    tensors += new_scratch(spec.scratch(tensors), tensors[0])
    grid, arguments = spec.arguments(tensors)
    assert grid == (6, 1, 1)  # three clusters
    first = arguments[8].tolist()
    assert sorted(first[4 : first[3]]) == [*range(2 * 2 * 3)]


COMPILED = [
    "h16_q4096_d192_causal",
    "h16_kv4_q4096_d160_full",
    "h8_q1000_k3990_d136_causal_fp16",
    "h8_q4096_d192_dv128_causal",
    "h8_q1000_k3990_d208_fp16_full_w500_a20",
    "h8_q4096_d256_causal",
]


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("text", COMPILED)
def test_both_passes_compile_into_the_memory_of_a_cta(text: str) -> None:
    """The default, which spills nothing, and for one workload another config."""
    case = case_of(text)
    configs = [case.default()]
    if text == COMPILED[0]:
        configs.append(random.Random(text).choice(case.feasible().configs))
    for config in configs:
        compiled = cuda.compile(case, config)
        assert compiled.postprocess is None
        limit = archs.gpu(SM90.arch).smem_per_block_bytes
        for each in (compiled.binary, compiled.preprocess):
            made = each.resources
            assert made.smem_bytes <= limit and made.registers == 168, config
            most = 0 if config == case.default() else 100
            assert made.spill_bytes <= most, config
