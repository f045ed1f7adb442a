"""tunefa/measure/backward_contest.py on a device: gradients of tunefa beside those of peers."""

from __future__ import annotations

import pytest
import torch

from tunefa.experiments import compare
from tunefa.measure import contest
from tunefa.measure.contest import Contest, Settings
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu

QUICK = Settings(rounds=3)


def held(text: str, *names: str) -> Contest:
    makers = compare.contestants(["tunefa", *names], None)
    return contest.run(Workload.parse(f"bwd_{text}"), makers, QUICK)


@pytest.mark.parametrize(
    "text",
    [
        "b2_h8_q512_d64_full",
        "b2_h8_q512_d128_causal",
        "b1_h8_kv2_q512_d128_fp16_causal",
        "b1_h4_q256_k512_d64_full",
        "b1_h4_q512_d64_full_deterministic",
    ],
)
def test_backward_passes_of_pytorch_are_right_and_captured(text: str) -> None:
    found = held(text, "sdpa", "cudnn", "fa2", "efficient", "math", "operators")
    needed = {"tunefa", "fa2", "math", "operators"}
    needed |= set() if "deterministic" in text else {"sdpa", "cudnn"}
    assert needed <= found.scores.keys(), found.left_out
    assert all(score.captured for score in found.scores.values()), found.scores
    assert not torch.are_deterministic_algorithms_enabled()


def test_packed_sequences_beside_the_flash_attention_in_pytorch() -> None:
    found = held("b4_h8_q500_d128_causal_varlen", "fa2")
    assert found.scores.keys() == {"tunefa", "fa2"}, found.left_out


def test_flex_attention_runs_its_backward_pass_again_and_again() -> None:
    found = held("b1_h4_kv2_q512_d64_causal", "flex")
    assert found.scores.keys() == {"tunefa", "flex"}, found.left_out
