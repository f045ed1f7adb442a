"""The Hopper backward in Gluon, run by threads on the CPU: its numbers, barriers and buffers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support import attended as attention
from tests.support import backward_rows, gluon_on_cpu
from tunefa.compile.contract import LaunchSpec
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_gluon_sm90")
ROWS_M128 = {"BLOCK_M": 128, "DQ_SPLIT": 2, "KV_IN_REGISTERS": 0, "PREFETCH_S": 0,
             "Q_STAGES": 2, "DS_STAGES": 2, "DQ_STAGES": 1}  # fmt: skip
ALONE = {"WARPGROUPS": 1, "DQ_SPLIT": 1}
CASES: list[tuple[str, dict[str, int]]] = [
    ("h1_q128_k128_d128_full", {}),
    ("h2_q384_k384_d128_causal", {}),
    ("h2_q300_k130_d64_causal", {}),
    ("b2_h2_q130_k300_d64_full", {"STAGGER": 2}),
    ("h4_kv2_q200_k333_d128_causal", {"PREFETCH_S": 2, "DEFER_ROW_LOADS": 2}),
    ("h4_kv1_q333_k200_d64_causal", {"DS_STAGES": 2}),
    ("h3_q100_k17_d80_causal", {"DS_STAGES": 2, "DQ_STAGES": 2}),
    ("h4_kv2_q260_k260_d64_full", {"DQ_SPLIT": 0, "PREFETCH_S": 0, "Q_STAGES": 2}),
    ("h4_kv2_q260_k200_d64_causal", ROWS_M128),
    ("h2_q260_k140_d32_full", ROWS_M128 | {"STAGGER": 1}),
    ("h4_kv2_q260_k200_d64_causal", ALONE),
    ("h2_q200_k200_d64_full", ALONE | {"DS_STAGES": 2, "PREFETCH_S": 2, "DQ_STAGES": 1}),
]


@pytest.mark.parametrize(("text", "changes"), CASES)
def test_gradients_are_right(text: str, changes: dict[str, int]) -> None:
    for found, wanted in gradients(text, changes):
        assert not found.isnan().any()
        assert (found.double() - wanted).norm() <= 2e-3 * wanted.norm() + 1e-9


def test_keys_that_are_not_there_give_nothing_where_scores_are_very_low() -> None:
    """Zeros stand for them, and exp(0 - lse) is infinite if all other scores are below -1,000."""
    for found, _ in gradients("h1_q70_k140_d64_full", {}, low=True):
        assert found.isfinite().all()


def gradients(
    text: str, changes: dict[str, int], low: bool = False
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """dq, dk and dv of the kernel, each with what it should be."""
    case = Case(KERNEL, Workload.parse(f"bwd_{text}_fp16"), Target.named("sm90"))
    config = {**case.default(), **changes}
    assert case.refusal(config) is None, config
    spec = LaunchSpec(case, config, 0.125)
    tensors, expected = attended(spec, low)
    grid, arguments = spec.arguments(tensors)
    variant = KERNEL.module.variant(case.workload, config)
    gluon_on_cpu.launch(variant, grid, arguments, seed=0)
    dq = backward_rows.in_rows(spec, tensors) * spec.scale
    return list(zip((dq, *tensors[8:10]), expected, strict=True))


def attended(spec: LaunchSpec, low: bool) -> tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]:
    """A call's tensors, with scratch memory as `prepare_rows` leaves it, and the gradients."""
    tensors, expected = attention.attended(spec, low)
    _, _, _, out, lse, dout, dlse, *_, lse_log2, delta, dq_sum = tensors
    sees, seqlen_q = lse != -math.inf, spec.workload.seqlen_q
    lse_log2.fill_(math.inf), delta.zero_(), dq_sum.zero_()
    rows = lse_log2.view(*lse.shape[:2], -1), delta.view(*lse.shape[:2], -1)
    rows[0][..., :seqlen_q] = (lse * math.log2(math.e)).masked_fill(~sees, math.inf)
    exact = (out.double() * dout.double()).sum(-1) - dlse
    rows[1][..., :seqlen_q] = exact.masked_fill(~sees, 0.0)
    return tensors, expected
