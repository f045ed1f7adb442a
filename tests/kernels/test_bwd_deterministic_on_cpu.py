"""Deterministic gradients of kernels/attention_bwd_cuda_sm90.cu on the CPU: the same bits however
many CTAs run at the same time, in whatever sequence, and no deadlock."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import backward_on_cpu, cuda_on_cpu
from tests.support.backward_on_cpu import EARLY, MODES, inputs, packed, ran
from tests.support.cuda_on_cpu import Mode, OnCpu
from tunefa.compile.launch.driver import DriverError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_cuda_sm90")
SM90 = archs.load("sm90")
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
SMALL = {**backward_on_cpu.SMALL, "EARLY_POSTPROCESS": 1}
TWO_K = {"PERSISTENT": 1, "K_STAGES": 2}
CASES: list[tuple[str, dict[str, int]]] = [
    ("h2_q300_k300_d64_bf16_causal", {"L2_SECTION_HEADS": 2, "PING_PONG": 1, "ZERO_DQ": 0}),
    (
        "h2_q170_k400_d64_fp16_full",
        {"BLOCK_M": 96, "L2_SECTION_HEADS": 2, "EARLY_POSTPROCESS": 0},
    ),
    ("h3_kv1_q300_k290_d128_bf16_causal", {"BLOCK_M": 80}),
    # Two sections, the first of which begins with the larger keys.
    ("h4_kv2_q300_k300_d64_bf16_causal", {"GROUP_SPLITS": 2, "ZERO_DQ": 0, "PING_PONG": 1}),
    (
        "h2_kv1_q400_k400_d128_bf16_causal_w70",
        {"BLOCK_M": 80, "PING_PONG": 1, "ZERO_DQ": 0, "GROUP_SPLITS": 2},
    ),
    ("h4_kv2_q300_k420_d64_fp16_full_w1_a5", {"L2_SECTION_HEADS": 2, "PING_PONG": 1}),
    ("b2_h5_kv5_q200_k200_d64_bf16_causal", {"L2_SECTION_HEADS": 4, "Q_STAGES": 3, "ZERO_DQ": 0}),
    ("h6_kv3_q260_k390_d64_fp16_full_a140", {"BLOCK_M": 96, "L2_SECTION_HEADS": 2}),
    # No row sees the first keys, then the last rows.
    ("b2_h2_kv1_q70_k600_d64_bf16_causal_w40", {"ZERO_DQ": 0}),
    ("h2_kv1_q500_k130_d96_bf16_full_w130_a20", {"ZERO_DQ": 0}),
    # One CTA per SM. The last section begins with the smaller keys.
    (
        "b2_h3_q300_k400_d64_bf16_causal",
        {**TWO_K, **EARLY, "L2_SECTION_HEADS": 4, "PING_PONG": 1, "ZERO_DQ": 0},
    ),
    ("b2_h5_q200_k390_d64_bf16_full", {**TWO_K, **EARLY, "BLOCK_M": 128, "L2_SECTION_HEADS": 8}),
    (
        "b2_h4_kv2_q260_k390_d128_fp16_full",
        {**TWO_K, "L2_SECTION_HEADS": 2, "PING_PONG": 1, "ZERO_DQ": 0, "GROUP_SPLITS": 2},
    ),
    ("b3_h2_q200_k600_d96_bf16_causal_w40", {"PERSISTENT": 1, "BLOCK_M": 80, "ZERO_DQ": 0}),
    ("b2_h4_q260_k390_d64_bf16_causal", {"PERSISTENT": 1, "DQ_WARPGROUP": 1, "ZERO_DQ": 0}),
]
RESIDENT = (1, 3, 64)
"""The numbers of CTAs that run at the same time."""


def workload_of(text: str, config: dict[str, int]) -> Workload:
    """The deterministic workload, which the config must serve."""
    made = Workload.parse(f"bwd_{text}_deterministic")
    assert KERNEL.why_not(made, SM90) is None and KERNEL.refusal(config, made, SM90) is None
    return made


@pytest.mark.parametrize(("text", "changes"), CASES, ids=[text for text, _ in CASES])
def test_gradients_are_right_and_always_the_same(
    text: str, changes: dict[str, int], tmp_path: Path
) -> None:
    config = {**SMALL, **changes}
    workload = workload_of(text, config)
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    tensors, right = inputs(workload)
    first = ran(run, workload, tensors, MODES[0])
    limit = 1.5e-3 if workload.dtype == "fp16" else 1e-2
    for found, wanted in zip(first, right, strict=True):
        assert (found.double() - wanted).norm() <= limit * wanted.norm()
    for mode, resident in zip(MODES[1:], RESIDENT[1:], strict=True):
        made = ran(replace(run, resident=resident), workload, tensors, mode)
        assert all(map(torch.equal, made, first)), (mode, resident)


@pytest.mark.parametrize("persistent", [0, 1])
def test_packed_sequences_get_the_same_bits(persistent: int, tmp_path: Path) -> None:
    lengths = [(70, 70), (1, 1), (0, 0), (260, 260), (40, 200), (130, 0)]
    config = {**SMALL, "ZERO_DQ": 0, "L2_SECTION_HEADS": 2, "PERSISTENT": persistent}
    workload = workload_of("b6_h2_kv1_q260_k260_d64_bf16_causal_varlen", config)
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    tensors, right = packed(workload, lengths)
    ends = [int(tensors[place][-1]) for place in (10, 11, 11)]
    first: list[torch.Tensor] = []
    for mode, resident in zip(MODES, RESIDENT, strict=True):
        found = ran(replace(run, resident=resident), workload, tensors, mode)
        made = [each[:end] for each, end in zip(found, ends, strict=True)]
        first = first or made
        assert all(map(torch.equal, made, first))
    for each, wanted, end in zip(first, right, ends, strict=True):
        assert (each.double() - wanted[:end]).norm() <= 1e-2 * wanted[:end].norm()


KINDS = {
    "causal": {"BLOCK_M": 64, "ZERO_DQ": 0, "PING_PONG": 1},
    "full": {"BLOCK_M": 128, "ZERO_DQ": 1},
    "causal_w90": {"BLOCK_M": 96, "ZERO_DQ": 0},
}


@pytest.mark.parametrize("mask", KINDS)
def test_random_shapes_end_and_are_right(mask: str, tmp_path: Path) -> None:
    """The blocks of rows and the tiles of keys do not line up, and heads are grouped."""
    config = {**SMALL, **KINDS[mask], "L2_SECTION_HEADS": 2}
    chance, run = random.Random(mask), None
    for _ in range(2):
        heads_kv, group = chance.randint(1, 3), chance.choice([1, 2, 3])
        rows, keys = chance.randint(1, 450), chance.randint(1, 450) | 1  # no whole tiles
        text = f"h{heads_kv * group}_kv{heads_kv}_q{rows}_k{keys}_d64_bf16_{mask}"
        workload = workload_of(text, config)
        run = run or cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
        tensors, right = inputs(workload)
        made = [
            ran(
                replace(run, resident=chance.randint(1, 40)),
                workload,
                tensors,
                chance.choice(MODES),
            )
            for _ in range(3)
        ]
        assert all(map(torch.equal, made[0], made[1])) and all(map(torch.equal, *made[1:]))
        for found, wanted in zip(made[0], right, strict=True):
            least = 1e-2 * max(float(each.norm()) for each in right)
            assert (found.double() - wanted).norm() <= 1e-2 * max(float(wanted.norm()), least), text


MISTAKES = [
    ("a CTA does not wait for those before it", r"semaphore\.acquire\(memory\);", ";"),
    (
        "an addition is not done when the next CTA begins",
        r"bulk_wait_done\(\);(\s+fence_proxy_async_all\(\);\s+st_release\([^;]*before \+ 1)",
        r"\1",
    ),
    ("a CTA counts one too many before it", r": number - seen\.first", ": number - seen.first + 1"),
    ("CTAs start in the other sequence", r"within / heads :", "tiles - 1 - within / heads :"),
    ("a CTA that adds late counts as the first", r"seen\.last - number", "seen.last - number - 1"),
    (
        "all CTAs count those of smaller keys",
        r"1 && tile\.larger_keys_first \?",
        "false ?",
    ),
    (
        "CTAs go through the query heads one by one",
        r"if \(\+\+head == end_head\)",
        "if (block == tile.first_block)",
    ),
]


MISTAKEN = "q400_k400_d64_bf16_causal"


@pytest.mark.parametrize(
    ("what", "pattern", "instead"), MISTAKES, ids=[what for what, *_ in MISTAKES]
)
def test_the_cpu_finds_mistakes(what: str, pattern: str, instead: str, tmp_path: Path) -> None:
    def change(source: str) -> str:
        changed, count = re.subn(pattern, instead, source)
        assert count == 1, "the source has no such place"
        return changed

    # Larger keys of all heads but the last come first.
    workloads = [workload_of(f"h{2 * heads}_kv{heads}_{MISTAKEN}", SMALL) for heads in (1, 2)]
    run = cuda_on_cpu.compiled(KERNEL, workloads[0], SMALL, tmp_path, change)
    runs = [
        signs(replace(run, resident=resident), workload, *inputs(workload))
        for workload in workloads
        for resident in (2, 5)
    ]
    # The first mode of one of them finds most mistakes.
    assert any(map(any, itertools.zip_longest(*runs))), what


def signs(run: OnCpu, workload: Workload, tensors: Any, right: Any) -> Iterator[bool]:
    """Whether a mode ends in a deadlock, or with other bits or numbers than it should, for one mode
    after the other; none comes after one whose launch fails."""
    first = None
    for mode in range(16):
        try:
            made = ran(run, workload, tensors, Mode(mode))
        except DriverError as error:
            yield "deadlock" in str(error)
            return
        first = first or made
        is_close = (made[0].double() - right[0]).norm() <= 1e-2 * right[0].norm()
        yield not (is_close and all(map(torch.equal, made, first)))


def test_a_cta_that_waits_for_one_that_has_not_started_is_a_deadlock(tmp_path: Path) -> None:
    """So the CPU would tell if CTAs depended on those that start later."""
    workload = workload_of("h1_q200_k300_d64_bf16_full", SMALL)
    run = cuda_on_cpu.compiled(
        KERNEL, workload, SMALL, tmp_path,
        lambda source: source.replace("number - seen.first", "2 - number"),
    )  # fmt: skip
    tensors, _ = inputs(workload)
    with pytest.raises(DriverError, match="a number that another CTA releases"):
        ran(run, workload, tensors, MODES[0])
    ran(replace(run, resident=3), workload, tensors, MODES[0])


def test_first_tiles_that_belong_to_ctas_would_be_a_deadlock(tmp_path: Path) -> None:
    """A CTA that has finished its tile would wait for the first tile of one that cannot start."""
    config = {**SMALL, "PERSISTENT": 1}
    workload = workload_of("h2_q200_k500_d64_bf16_full", config)

    def change(source: str) -> str:
        changed, count = re.subn(r"TAKES_FIRST_TILE = [^}]+", "TAKES_FIRST_TILE = false", source)
        assert count == 1
        return changed

    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path, change)
    tensors, _ = inputs(workload)
    ran(replace(run, resident=3), workload, tensors, MODES[0])
    with pytest.raises(DriverError, match="a number that another CTA releases"):
        ran(replace(run, resident=1), workload, tensors, MODES[0])


@pytest.mark.parametrize(
    ("call", "length"),
    [("q128_k128_d64_bf16_full", (128, 200)), ("q200_d64_bf16_causal_w40", (300, 300))],
)
def test_a_sequence_that_is_longer_than_its_limit_does_not_wait_for_ever(
    call: str, length: tuple[int, int], tmp_path: Path
) -> None:
    """Its gradients are undefined, but the launch ends: no tile stands for the further keys."""
    workload = workload_of(f"b1_h1_{call}_varlen", SMALL)
    run = cuda_on_cpu.compiled(KERNEL, workload, SMALL, tmp_path)
    tensors, _ = packed(workload, [length])
    for resident in (1, 3):
        made = ran(replace(run, resident=resident), workload, tensors, MODES[0])
        assert made[0].isfinite().any()
