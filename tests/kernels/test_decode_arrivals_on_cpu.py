"""kernels/attention_decode_cuda_sm90.cu on the CPU, where the CTA that writes the last split of a
KV head combines them: the bits are those of the second kernel, whatever memory holds before."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import cuda_on_cpu
from tests.support.cuda_on_cpu import Mode
from tests.support.kept_memory import KeptMemory, outputs, without
from tests.support.launch_specs import spec_of
from tunefa.measure import ops
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_decode_cuda_sm90")
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
SMALL = {"BLOCK_N": 32, "num_warps": 2, "num_stages": 3, "COPIES_IN_FLIGHT": 2,
         "CTAS_PER_SM": 2, "LEAF_KEYS": 32, "MOST_LEAVES": 64, "TREE_DEPTH": 3,
         "SPLIT_COST": 32, "LAST_CTA_COMBINES": 0}  # fmt: skip
CASES: list[tuple[str, dict[str, int], list[int]]] = [
    # Up to 63 splits of a sequence, and sequences with one and with none.
    ("b5_h4_kv2_q1_k2000_d64_bf16", {"num_warps": 1, "CTAS_PER_SM": 4}, [2000, 0, 1, 33, 1187]),
    # At most two splits, and 72 counts.
    ("b9_h16_kv8_q1_k50_d64_bf16", {"num_warps": 1, "CTAS_PER_SM": 4}, [50, 0, 33, *[40] * 6]),
    (
        "b2_h4_kv2_q3_k333_d64_fp16_causal_w100_page16_sinks",
        {"BLOCK_N": 64, "LEAF_KEYS": 64},
        [333, 167],
    ),
    ("b3_h8_kv2_q1_k500_d128_bf16_page64_e4m3cache", {"num_stages": 4}, [500, 64, 65]),
    ("b2_h4_kv2_q1_k150_d128_dv64_fp16", {"COPIES_IN_FLIGHT": 3}, [150, 97]),
]
ORDERS = [
    (Mode.LATE_LOADS | Mode.STOPS, 3, 1),
    (Mode.LAST_WARP_FIRST | Mode.LATE_LOADS | Mode.STOPS, 5, 7),
    (Mode.LATE_LOADS | Mode.LANES_APART, 1, 132),
    (Mode.LATE_LOADS | Mode.STOPS, 100, 132),
]
"""Modes, how many CTAs are resident, and SMs: one CTA has several splits, or each has one."""
BYTES = (0x00, 0xFF, 0x5A, None)
"""The byte of which memory is full before a call; with None it is as the call before left it."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> KeptMemory:
    return KeptMemory.installed(monkeypatch)


def made(text: str, lengths: list[int]) -> tuple[Workload, tuple[Any, ...]]:
    workload = Workload.parse(f"decode_{text}_varlen")
    tensors, _ = ops.of(workload).inputs(workload, "normal", "cpu")
    for cache in tensors[1:3]:
        if cache.element_size() > 1:  # NaN lies behind the lengths of `inputs`
            cache.nan_to_num_(nan=0.5, posinf=0.5, neginf=0.5)
    tensors[5].copy_(torch.tensor(lengths))
    return workload, tuple(tensors)


@pytest.mark.parametrize(("text", "changes", "lengths"), CASES, ids=[text for text, *_ in CASES])
def test_the_last_cta_gives_the_bits_of_the_second_kernel(
    memory: KeptMemory, text: str, changes: dict[str, int], lengths: list[int], tmp_path: Path
) -> None:
    (workload, tensors), config = made(text, lengths), {**SMALL, **changes}
    usual = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    wanted = outputs(usual, tensors, workload, Mode.LATE_LOADS, 7)
    assert wanted[0].isfinite().all()
    run = cuda_on_cpu.compiled(KERNEL, workload, config | {"LAST_CTA_COMBINES": 1}, tmp_path)
    assert usual.postprocess is not None and run.postprocess is None
    for mode, resident, sms in ORDERS:
        here = replace(run, resident=resident)
        for byte in BYTES:
            memory.begin(byte)
            found = outputs(here, tensors, workload, mode, sms)
            assert all(map(torch.equal, found, wanted)), (mode, resident, sms, byte)
    assert memory.is_intact()


COUNTS = "const u64 seen = atomic_compare_and_swap_acq_rel(&count, found, NONE + 1);"
WRONG = {
    "no end": ("if (is_last) arrivals->end();", ";"),
    "no barrier before": ("if (split.splits == 1) return;\n    exchange.sync();",
                          "if (split.splits == 1) return;"),
    "no count": (COUNTS, "const u64 seen = found;"),
    "a lost count": ("return (int)(atomic_add_acq_rel(&count, 1) - NONE);",
                     "return (int)(seen - NONE);"),
    "a count in place of another": (COUNTS, "const u64 seen = found; count = NONE + 1;"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_each_part_of_an_arrival_is_needed(memory: KeptMemory, name: str, tmp_path: Path) -> None:
    """Some order of CTAs and warps finds each part that is left out."""
    workload, tensors = made("b2_h4_kv2_q1_k700_d64_bf16", [700, 90])
    (statement, instead), config = WRONG[name], SMALL | {"LAST_CTA_COMBINES": 1}
    change = partial(without, statement, instead=instead)
    right = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    wanted = outputs(right, tensors, workload, Mode.LATE_LOADS, 7)
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path, change)
    for (mode, resident, sms), byte in itertools.product(ORDERS, BYTES):
        memory.begin(byte)
        here = replace(run, resident=resident)
        found = outputs(here, tensors, workload, mode, sms)
        if not all(map(torch.equal, found, wanted)):
            return
    pytest.fail(name)


@pytest.mark.parametrize("text", ["b1_k20", "b70_h3_kv3_k20", "b9_h8_kv8_k70", "b300_k64"])
def test_the_memory_has_a_count_for_each_kv_head_of_a_sequence(text: str) -> None:
    """SplitCounter, of 16 bytes, and the counts lie behind the ends of splits."""
    workload = Workload.parse(f"decode_{text}")
    tensors, _ = ops.of(workload).inputs(replace(workload, seqlen_k=1), "normal", "cpu")
    sizes = {}
    for last in (0, 1):
        spec = spec_of(KERNEL, workload, SMALL | {"LAST_CTA_COMBINES": last})
        assert spec.has_scratch(is_alone=True)
        keys = torch.empty(workload.batch, workload.heads_kv, workload.seqlen_k, 1, device="meta")
        given = [tensors[0], keys, *tensors[2:]]
        ((rows, splits, _), _), ((more, kept, _), _) = KERNEL.module.scratch(given, spec)
        assert kept == splits
        sizes[last] = 8 * (more - rows) * splits
    counts = 8 * workload.batch * workload.heads_kv
    assert 16 <= sizes[0] < 16 + 8 * splits and 16 + counts <= sizes[1] < 16 + counts + 8 * splits
