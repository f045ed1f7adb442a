"""tunefa/measure/backward_contest.py: backward passes are called, timed, and judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.experiments import compare
from tunefa.measure import contest, ops, peers
from tunefa.measure.backward_contest import TrueGradients, call_of
from tunefa.measure.contest import Settings
from tunefa.measure.peer import Unserved
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("bwd_b2_h4_kv2_q96_d32_bf16_causal")
ON_THE_HOST = Settings("eager", rounds=2, device="cpu")


def tensors(workload: Workload = WORKLOAD) -> tuple[Any, ...]:
    made: tuple[Any, ...] = ops.of(workload).tensors(workload, "cpu", seed=0)
    return made


@pytest.mark.parametrize(
    "text", ["b2_h4_kv2_q96_d32_bf16_causal", "b1_h4_q40_k130_d32_fp16_full", "q64_d32_softcap"]
)
def test_peers_of_pytorch_have_right_gradients(text: str) -> None:
    workload = Workload.parse(f"bwd_{text}")
    names = ["operators"] if workload.softcap else ["sdpa", "math", "operators"]
    found = contest.run(workload, compare.contestants(names, None), ON_THE_HOST)
    assert list(found.scores) == names, found.left_out
    for score in found.scores.values():
        assert len(score.samples_us) == 2 and 0 < score.error < 8e-3


def test_a_call_repeats_the_backward_pass_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tensors()
    call = call_of(peers.load("operators"), WORKLOAD, made)
    monkeypatch.setattr(torch, "softmax", None)  # a forward pass would fail
    first, second = call(), call()
    assert [each.shape for each in first] == [each.shape for each in made[:3]]
    assert all(map(torch.equal, first, second))


def test_a_peer_without_a_backward_pass_says_so() -> None:
    with pytest.raises(Unserved, match="its backward pass is not called"):
        call_of(peers.load("fa3"), WORKLOAD, tensors())


def test_only_ordered_peers_are_deterministic() -> None:
    asked = replace(WORKLOAD, deterministic=True)
    with pytest.raises(Unserved, match="no deterministic backward pass"):
        call_of(peers.load("sdpa"), asked, tensors(asked))
    before = torch.are_deterministic_algorithms_enabled()
    assert len(call_of(peers.load("math"), asked, tensors(asked))()) == 3
    assert torch.are_deterministic_algorithms_enabled() == before


def exact_call(workload: Workload) -> tuple[TrueGradients, tuple[Tensor, ...]]:
    made = tensors(workload)
    return TrueGradients.of(workload, made), call_of(peers.load("math"), workload, made)()


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("fault", ["a wrong row", "NaN", "twice"])
def test_wrong_gradients_are_found(number: int, fault: str) -> None:
    truth, grads = exact_call(WORKLOAD)
    assert truth.verdict(grads).why_wrong is None
    if fault == "twice":
        grads[number].mul_(2)
    else:
        grads[number][0, 1, 50] = float("nan") if fault == "NaN" else 0.0
    assert truth.verdict(grads).why_wrong is not None


def test_a_row_of_a_query_that_sees_one_key_passes() -> None:
    truth, grads = exact_call(WORKLOAD)
    assert float(truth.exact[0][0, 0, 0].norm()) < 1e-9 and truth.verdict(grads).worst_row < 0.05


def test_another_shape_raises() -> None:
    truth, (dq, dk, dv) = exact_call(WORKLOAD)
    with pytest.raises(ValueError, match="not"):
        truth.verdict((dq, dv[:, :1], dk))


def test_packed_sequences_are_judged_whole() -> None:
    packed = Workload.parse("bwd_b3_h4_kv2_q64_d32_fp16_causal_varlen")
    made = tensors(packed)
    truth = TrueGradients.of(packed, made)
    right = ops.of(packed).expected(packed, "normal", made, torch.float64).grads
    halves = tuple(each.half() for each in right)
    assert truth.verdict(halves).why_wrong is None
    halves[1][-1] = 0.0
    assert truth.verdict(halves).why_wrong is not None
