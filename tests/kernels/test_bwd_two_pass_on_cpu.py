"""The two-pass Hopper backward in Gluon, run by threads on the CPU: numbers, barriers, buffers."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import gluon_on_cpu
from tests.support.attended import Kind, attended
from tunefa.compile.contract import LaunchSpec
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_two_pass_gluon_sm90")
ONE_TILE = {"PERSISTENT1": 0, "PERSISTENT2": 0, "Q_STAGES2": 1, "DEPENDENT_LAUNCH": 0}
"""CTAs work on one tile each, unless a case says otherwise."""
ALONE = {"WARPGROUPS1": 1, "WARPGROUPS2": 1}
PERSISTENT = {"PERSISTENT1": 1, "PERSISTENT2": 1, "Q_STAGES1": 2}
THREE = {"WARPGROUPS1": 3, "KV_IN_REGISTERS1": 0, "PREFETCH_S1": 0}
CASES: list[tuple[str, dict[str, int]]] = [
    ("h2_q300_k130_d64_causal", {"BLOCK_N2": 128, "WARPGROUPS2": 2, "PREFETCH_S2": 1}),
    (
        "h4_kv2_q200_k333_d128_causal",
        {"BLOCK_N2": 64, "PREFETCH_S2": 2, "K_STAGES2": 3, "V_STAGES2": 3},
    ),
    ("h4_kv1_q333_k200_d64_causal", {"L2_SECTION_HEADS": 2}),
    ("h3_q100_k17_d80_causal", ALONE | {"BLOCK_N2": 64, "PREFETCH_S1": 0}),
    ("h2_q190_k500_d40_full", {"V_STAGES2": 3, "K_STAGES2": 3, "BLOCK_N2": 64}),
    ("h2_q300_k300_d256_causal", {"PREFETCH_S2": 0}),
    ("h4_kv1_q200_k70_d160_causal", {}),
    ("h2_q33_k17_d256_full", {}),
    ("b3_h4_kv2_q300_k400_d64_full", {"PERSISTENT2": 1, "Q_STAGES2": 2}),
    ("h4_kv2_q200_k333_d128_causal", {"PREFETCH_S1": 0, "DEFER_ROW_LOADS1": 2}),
    ("h4_kv1_q333_k200_d64_causal", {"KV_IN_REGISTERS1": 0, "PREFETCH_S1": 2}),
    ("b2_h2_q130_k300_d64_full", THREE | {"DEFER_ROW_LOADS1": 0}),
    (
        "h2_q500_k500_d40_causal",
        THREE | {"PERSISTENT1": 1, "PERSISTENT2": 1, "L2_SECTION_HEADS": 1},
    ),
    ("h4_kv2_q260_k260_d64_full", {"BLOCK_M1": 128, "KV_IN_REGISTERS1": 0, "PREFETCH_S1": 0}),
    ("b2_h5_q200_k300_d64_causal", PERSISTENT | {"L2_SECTION_HEADS": 16}),
    ("h6_kv3_q200_k700_d128_full", PERSISTENT | {"PREFETCH_S1": 0}),
    ("h2_q300_k300_d256_causal", {"P_BYTES1": 2}),
    ("h2_q200_k300_d64_causal", PERSISTENT | {"DEPENDENT_LAUNCH": 1}),
    ("h2_q400_k400_d64_causal_w70", {}),
    ("h2_q200_k333_d128_full_w11_a20", {}),
    ("h4_kv2_q333_k200_d64_causal_w130", PERSISTENT),
    ("b2_h3_q300_k500_d128_full_a50", {"BLOCK_N2": 64, "PREFETCH_S2": 0}),
    ("h2_q500_k300_d64_full_w1", {"L2_SECTION_HEADS": 2}),
    ("h2_q300_k600_d256_causal_w100", {}),
    ("h4_kv1_q150_k500_d192_full_w300_a5", {}),
    ("h2_q64_k1000_d64_full_w200_a100", {"WARPGROUPS2": 3, "BLOCK_N2": 64}),
    ("h2_q300_k330_d64_causal", {"Q_IN_REGISTERS2": 1, "WARPGROUPS2": 3, "BLOCK_N2": 64}),
    ("b3_h2_q200_k170_d128_full", {"Q_IN_REGISTERS2": 1, "BLOCK_N2": 64, "PERSISTENT2": 1}),
]


@pytest.mark.parametrize(("text", "changes"), CASES)
def test_gradients_and_row_sums_are_right(text: str, changes: dict[str, int]) -> None:
    check(text, changes)


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_defaults_are_right(head_dim: int, mask: str) -> None:
    text = f"b2_h2_q200_k330_d{head_dim}_{mask}"
    case = Case(KERNEL, Workload.parse(f"bwd_{text}_fp16"), Target.named("sm90"))
    check(text, case.default())


@pytest.mark.parametrize("seed", range(16))
def test_lengths_around_the_sizes_of_blocks(seed: int) -> None:
    chance = random.Random(seed)
    lengths = [1, 17, 62, 63, 64, 65, 66, 126, 127, 128, 129, 130, 200, 256, 384]
    q, k = chance.choice(lengths), chance.choice(lengths)
    heads, d = chance.choice(["h2", "h3", "h4_kv2"]), chance.choice([64, 128, 256])
    mask = chance.choice(["causal", "full", "causal_w100", "full_w1", "full_w90_a70", "full_a3"])
    text = f"{heads}_q{q}_k{k}_d{d}_{mask}"
    case = Case(KERNEL, Workload.parse(f"bwd_{text}_fp16"), Target.named("sm90"))
    check(text, chance.choice(case.feasible().configs))


def check(text: str, changes: dict[str, int]) -> None:
    """Compares all that the kernel writes."""
    for found, wanted in found_and_wanted(text, changes):
        assert not found.isnan().any()
        same = found == wanted  # two infinities have no difference
        difference = (found.double() - wanted).masked_fill(same, 0.0)
        finite = wanted.masked_fill(wanted.isinf(), 0.0)
        assert difference.norm() <= 2e-3 * finite.norm() + 1e-4


@pytest.mark.parametrize("head_dim", [64, 256])
def test_keys_that_are_not_there_give_nothing_where_scores_are_very_low(head_dim: int) -> None:
    """Zeros stand for them, and exp(0 - lse) is infinite if all other scores are below -1,000."""
    for found, _ in found_and_wanted(f"h1_q70_k140_d{head_dim}_full", {}, "low")[:3]:
        assert found.isfinite().all()


@pytest.mark.parametrize("p_bytes", [2, 4])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_keys_that_get_little_attention_have_exact_gradients(p_bytes: int, mask: str) -> None:
    text, changes = f"h1_q130_k130_d256_{mask}", {"P_BYTES1": p_bytes}
    found, wanted = found_and_wanted(text, changes, "one key")[1]  # dK
    off = (found.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert off[..., 1:].max() <= 1e-2  # 2e-1 without P_SHIFT


def found_and_wanted(
    text: str, changes: dict[str, int], kind: Kind = "normal"
) -> list[tuple[Tensor, Tensor]]:
    """dq, dk, dv, lse in powers of two and delta of the kernel, each with what it should be."""
    case = Case(KERNEL, Workload.parse(f"bwd_{text}_fp16"), Target.named("sm90"))
    config = {**case.default(), **ONE_TILE, **changes}
    # The simulation multiplies in fp16, while P_BYTES1 2 is for bf16 alone.
    in_bf16 = replace(case, workload=replace(case.workload, dtype="bf16"))
    assert in_bf16.refusal(config) is None, config
    spec = LaunchSpec(case, config, 0.125, seen_sms=3)
    tensors, expected = attended(spec, kind)
    rows = _rows(tensors, config["P_BYTES1"] == 2)
    module: Any = KERNEL.module
    grid, arguments = spec.preprocess_arguments(tensors)
    gluon_on_cpu.launch(module.preprocess(case.workload, config), grid, arguments, seed=0)
    grid, arguments = spec.arguments(tensors)
    gluon_on_cpu.launch(module.variant(case.workload, config), grid, arguments, seed=0)
    return list(zip((*tensors[7:10], *tensors[10:12]), (*expected, *rows), strict=True))


def _rows(tensors: tuple[Tensor, ...], shifted: bool) -> tuple[Tensor, Tensor]:
    """lse in powers of two and delta, as they should be; `shifted`: for P times 2^15."""
    out, lse, dout, dlse, lse_log2, delta = (tensors[i] for i in (3, 4, 5, 6, 10, 11))
    sees, seqlen_q = lse != -math.inf, lse.shape[2]
    made = torch.full_like(lse_log2, math.inf), torch.zeros_like(delta)
    in_heads = [each.view(*lse.shape[:2], -1)[..., :seqlen_q] for each in made]
    in_heads[0].copy_((lse * math.log2(math.e)).masked_fill(~sees, math.inf))
    in_heads[1].copy_(((out.float() * dout.float()).sum(-1) - dlse).masked_fill(~sees, 0.0))
    return (made[0] - 15, made[1] * 2**-15) if shifted else made
