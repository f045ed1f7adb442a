"""The counter from which CTAs of kernels/attention_decode_cuda_sm90.cu take splits, on the CPU. Its
memory holds anything before a call."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import cuda_on_cpu, kept_memory
from tests.support.cuda_on_cpu import Mode
from tests.support.kept_memory import KeptMemory, without
from tunefa.measure import ops
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_decode_cuda_sm90")
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
WORKLOAD = Workload.parse("decode_b5_h4_kv2_q1_k700_d64_bf16_varlen")
CONFIG = {"BLOCK_N": 32, "num_warps": 1, "num_stages": 3, "COPIES_IN_FLIGHT": 2,
          "CTAS_PER_SM": 4, "LEAF_KEYS": 32, "MOST_LEAVES": 64, "TREE_DEPTH": 3,
          "SPLIT_COST": 32, "LAST_CTA_COMBINES": 0}  # fmt: skip
ONE_SM, MANY_SMS = 1, 132
"""Four CTAs for dozens of splits, or one, and a CTA for each."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> KeptMemory:
    return KeptMemory.installed(monkeypatch)


@pytest.fixture(scope="module")
def tensors() -> tuple[Any, ...]:
    made, _ = ops.of(WORKLOAD).inputs(WORKLOAD, "normal", "cpu")
    return tuple(made)


def outputs(run: cuda_on_cpu.OnCpu, tensors: tuple[Any, ...], sms: int) -> list[torch.Tensor]:
    """Returns the outputs of a call. CTAs and lanes run in another order than they have numbers."""
    mode = Mode.LAST_WARP_FIRST | Mode.LATE_LOADS
    return kept_memory.outputs(run, tensors, WORKLOAD, mode, sms)


@pytest.mark.parametrize(("resident", "ctas"), [(1, 4), (3, 4), (1, 1)])
def test_each_split_is_taken_once_whatever_the_memory_holds(
    memory: KeptMemory, tensors: tuple[Any, ...], resident: int, ctas: int, tmp_path: Path
) -> None:
    config = CONFIG | {"CTAS_PER_SM": ctas}
    run = replace(cuda_on_cpu.compiled(KERNEL, WORKLOAD, config, tmp_path), resident=resident)
    wanted = outputs(run, tensors, MANY_SMS)
    assert all(each.isfinite().all() for each in wanted)
    outputs(run, tensors, ONE_SM)
    for byte in (0x00, 0xFF, 0x5A, None, None):  # twice as the call before has left it
        memory.begin(byte)
        assert all(map(torch.equal, outputs(run, tensors, ONE_SM), wanted)), byte
    assert memory.is_intact()


@pytest.mark.parametrize(
    "statement",
    ["if (!has_begun) counter->begin();", "counter_of_splits(sizes, ends)->end();"],
)
def test_the_counter_must_begin_and_end(
    memory: KeptMemory, tensors: tuple[Any, ...], statement: str, tmp_path: Path
) -> None:
    """Otherwise a call goes on counting where the memory, or the call before, left off."""
    change = partial(without, statement)
    run = cuda_on_cpu.compiled(KERNEL, WORKLOAD, CONFIG, tmp_path, change)
    wanted = outputs(run, tensors, MANY_SMS)
    outputs(run, tensors, ONE_SM)
    memory.forget_rows()
    if "begin" in statement:
        memory.fill(0x5A)
    assert not all(map(torch.equal, outputs(run, tensors, ONE_SM), wanted))
