"""The dKV pass of the two-pass backward, run by threads on the CPU: numbers, barriers, buffers."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import gluon_on_cpu
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

_ = kernels.load("attention_bwd_gluon_sm90").module  # makes the device code importable
HOST: Any = importlib.import_module("tunefa.kernels.gluon.host.key_gradients")
PLAIN = {"WARPGROUPS1": 2, "BLOCK_M1": 64, "Q_STAGES1": 2, "KV_IN_REGISTERS1": 0, "PREFETCH_S1": 1,
         "DEFER_ROW_LOADS1": 1, "P_BYTES1": 4, "PERSISTENT1": 0, "L2_SECTION_HEADS": 2}  # fmt: skip
CASES: list[tuple[str, dict[str, int]]] = [
    ("h1_q128_k128_d128_full", {}),
    ("h2_q384_k384_d128_causal", {"PREFETCH_S1": 0}),
    ("h2_q300_k130_d64_causal", {"PREFETCH_S1": 2, "KV_IN_REGISTERS1": 1}),
    ("b2_h2_q130_k300_d64_full", {"WARPGROUPS1": 3, "DEFER_ROW_LOADS1": 0}),
    ("h4_kv2_q200_k333_d128_causal", {"PREFETCH_S1": 0, "DEFER_ROW_LOADS1": 2}),
    ("h4_kv1_q333_k200_d64_causal", {"Q_STAGES1": 3, "PREFETCH_S1": 2, "DEFER_ROW_LOADS1": 0}),
    ("h3_q100_k17_d80_causal", {"WARPGROUPS1": 1}),
    ("h4_kv2_q260_k260_d64_full", {"BLOCK_M1": 128, "PREFETCH_S1": 0}),
    ("h4_kv2_q260_k200_d64_causal", {"BLOCK_M1": 128, "WARPGROUPS1": 3}),
    ("h2_q500_k500_d40_causal", {"WARPGROUPS1": 3, "Q_STAGES1": 4, "L2_SECTION_HEADS": 1}),
    ("b2_h5_q200_k300_d64_causal", {"PERSISTENT1": 1, "L2_SECTION_HEADS": 16}),
    ("h6_kv3_q200_k700_d128_full", {"PERSISTENT1": 1, "PREFETCH_S1": 0}),
    ("h3_q700_k600_d64_causal", {"PERSISTENT1": 1, "KV_IN_REGISTERS1": 1, "WARPGROUPS1": 1}),
    ("h2_q200_k200_d128_causal", {"PERSISTENT1": 1}),
    ("h1_q128_k128_d256_full", {}),
    ("h2_q300_k300_d256_causal", {"P_BYTES1": 2}),
    ("b2_h4_kv2_q70_k200_d192_causal", {}),
    ("h4_kv1_q200_k70_d160_causal", {"Q_STAGES1": 3}),
    ("h2_q33_k17_d256_full", {}),
]


@pytest.mark.parametrize(("text", "changes"), CASES)
def test_gradients_of_keys_and_values_are_right(text: str, changes: dict[str, int]) -> None:
    for found, wanted in gradients(text, changes):
        assert not found.isnan().any()
        assert (found.double() - wanted).norm() <= 2e-3 * wanted.norm() + 1e-9


@pytest.mark.parametrize("head_dim", [64, 256])
def test_keys_that_are_not_there_give_nothing_where_scores_are_very_low(head_dim: int) -> None:
    """Zeros stand for them, and exp(0 - lse) is infinite if all other scores are below -1,000."""
    for found, _ in gradients(f"h1_q70_k140_d{head_dim}_full", {}, low=True):
        assert found.isfinite().all()


@pytest.mark.parametrize("head_dim", [64, 256])
def test_nothing_is_added_where_no_row_gives_a_gradient(head_dim: int) -> None:
    found = gradients(f"h2_q100_k100_d{head_dim}_causal", {}, dout=0.0)
    assert all(not made.any() for made, _ in found)


def gradients(
    text: str, changes: dict[str, int], low: bool = False, dout: float = 1.0
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """dk and dv of the pass, each with what it should be."""
    workload, config = Workload.parse(f"bwd_{text}_fp16"), {**PLAIN, **changes}
    spec = SimpleNamespace(workload=workload, config=config, scale=0.125, sms=3)
    tensors, expected = attended(workload, spec.scale, low, dout)
    grid, arguments = HOST.arguments(tensors, spec)
    gluon_on_cpu.launch(HOST.variant(workload, config), grid, arguments, seed=0)
    return list(zip(tensors[8:10], expected, strict=True))


def attended(
    w: Workload, scale: float, low: bool, dout_size: float
) -> tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]:
    """A call's tensors, with the rows as the dQ pass leaves them, and the gradients."""
    torch.manual_seed(0)

    def normal(heads: int, length: int) -> torch.Tensor:
        made = torch.randn(w.batch, length, heads, w.head_dim, dtype=torch.float16)
        return made.transpose(1, 2)

    q, dout = (normal(w.heads, w.seqlen_q) for _ in range(2))
    k, v, dk, dv = (normal(w.heads_kv, w.seqlen_k) for _ in range(4))
    dout *= dout_size
    if low:
        q.fill_(16.0), k.fill_(-16.0)
    leaves = [x.double().requires_grad_() for x in (k, v)]
    keys, values = (x.repeat_interleave(w.group, 1) for x in leaves)
    s = scale * q.double() @ keys.transpose(-1, -2)
    if w.causal:
        seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(w.seqlen_k - w.seqlen_q)
        s = s.masked_fill(~seen, -math.inf)
    sums = torch.logsumexp(s, -1)
    sees = sums.detach() != -math.inf
    made = torch.exp(s - sums.masked_fill(~sees, 0.0)[..., None]) @ values
    expected = torch.autograd.grad((made * dout.double()).sum(), leaves)
    rows = HOST.rows(w)
    lse = torch.full((w.batch, w.heads, rows), math.inf)
    delta = torch.zeros(w.batch, w.heads, rows)
    log2 = sums.detach() * math.log2(math.e)
    lse[..., : w.seqlen_q] = log2.masked_fill(~sees, math.inf)
    row_sums = (made.detach() * dout.double()).sum(-1)
    delta[..., : w.seqlen_q] = row_sums.masked_fill(~sees, 0.0)
    unread = (None,) * 2
    tensors = (q, k, v, *unread, dout, *unread, dk.fill_(math.nan), dv.fill_(math.nan))
    return (*tensors, lse.flatten(), delta.flatten()), expected
