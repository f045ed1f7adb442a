"""benchmarks/soak.py and random_calls.py: calls, what is found wrong, and what is growth."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import tunefa
from benchmarks import soak
from benchmarks.random_calls import RandomCall, TrainingStep
from benchmarks.soak import Reading

DRAWN = [RandomCall.draw(random.Random(seed)) for seed in range(200)]
SMALL = RandomCall(2, 4, 2, 9, 14, 64, "bf16", True, False, 1, 64)


def test_draws_are_repeatable_and_of_every_kind() -> None:
    assert RandomCall.draw(random.Random(3)) == DRAWN[3]
    for field in ("dtype", "causal", "bhsd", "offset", "padding", "head_dim", "batch", "kind"):
        assert len({getattr(case, field) for case in DRAWN}) > 1, field
    assert any(case.heads > case.heads_kv for case in DRAWN)
    assert any(case.seqlen_q > case.seqlen_k for case in DRAWN)


@pytest.mark.parametrize("bhsd", [True, False])
def test_tensors_have_the_shapes_and_strides_of_the_case(bhsd: bool) -> None:
    q, k, v = RandomCall(**{**vars(SMALL), "bhsd": bhsd}).tensors("cpu")
    assert q.shape == ((2, 4, 9, 64) if bhsd else (2, 9, 4, 64))
    assert k.shape == v.shape == ((2, 2, 14, 64) if bhsd else (2, 14, 2, 64))
    assert q.stride(2) == 128 and q.stride(3) == 1 and q.storage_offset() == 1
    assert q.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "case",
    [
        SMALL,
        RandomCall(1, 3, 3, 12, 5, 128, "fp16", False, True, 0, 0),
        RandomCall(2, 4, 2, 90, 140, 64, "bf16", False, False, 0, 0, "window"),
        RandomCall(2, 4, 2, 9, 14, 64, "bf16", True, True, 0, 0, "softcap"),
        RandomCall(2, 4, 2, 9, 14, 64, "fp16", True, False, 0, 0, "scale"),
        RandomCall(2, 4, 2, 9, 14, 64, "e4m3", True, False, 0, 0),
        RandomCall(2, 4, 2, 9, 14, 64, "bf16", True, True, 0, 64, "packed"),
    ],
)
def test_right_outputs_pass_and_wrong_ones_are_said(
    case: RandomCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert case.run("cpu", compared=True) is None
    name = "flash_attention_varlen" if case.kind == "packed" else "flash_attention"
    right = getattr(tunefa, name)

    def off(*arguments: Any, **options: Any) -> Any:
        return 1.1 * right(*arguments, **options)

    monkeypatch.setattr(tunefa, name, off)
    assert case.run("cpu", compared=False) is None
    wrong = case.run("cpu", compared=True)
    assert wrong is not None and wrong.startswith("error 1.0e-01") and str(case) in wrong


STEPS = [TrainingStep.draw(random.Random(seed)) for seed in range(60)]


def test_steps_of_training_are_drawn_like_calls() -> None:
    assert TrainingStep.draw(random.Random(3)) == STEPS[3]
    assert {step.kind for step in STEPS} == {"plain", "packed"}
    assert {(step.dtype, step.causal, step.offset) for step in STEPS} == {("bf16", True, 0)}
    assert len({(step.seqlen_q, step.seqlen_k) for step in STEPS}) > 40


@pytest.mark.parametrize("kind", ["plain", "packed"])
@pytest.mark.parametrize("bhsd", [True, False])
def test_right_gradients_pass_and_wrong_ones_are_said(
    kind: str, bhsd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = TrainingStep(2, 4, 2, 90, 140, 64, "bf16", True, bhsd, 0, 64, kind)
    assert step.run("cpu", compared=True) is None
    grad = torch.autograd.grad

    def off(*arguments: Any) -> Any:
        dq, dk, dv = grad(*arguments)
        return dq, 1.5 * dk, dv

    monkeypatch.setattr(torch.autograd, "grad", off)
    assert step.run("cpu", compared=False) is None
    wrong = step.run("cpu", compared=True)
    assert wrong is not None and wrong.startswith("error ") and str(step) in wrong


def readings(*host: float) -> list[Reading]:
    return [Reading(mb, 2 * mb, round(mb)) for mb in host]


def test_growth_while_it_warms_up_is_none() -> None:
    assert soak.growth(readings(1, 50, 100, 100, 90, 100, 100, 95, 100), 0) == Reading(0, 0, 0)


def test_growth_afterwards_is_found() -> None:
    assert soak.growth(readings(1, 50, 100, 100, 110, 120, 130, 140, 150), 0) == Reading(30, 60, 30)


def test_too_few_rounds_say_nothing() -> None:
    with pytest.raises(ValueError, match="give more minutes"):
        soak.growth(readings(1, 2, 3, 4), 0)
    with pytest.raises(ValueError, match="give more minutes"):
        soak.growth(readings(*range(soak.FILLING + 3)))


def test_growth_while_plans_are_made_is_none() -> None:
    full = soak.FILLING
    assert soak.growth(readings(*range(full), *[full] * 4)) == Reading(0, 0, 0)


@pytest.mark.parametrize(
    ("grown", "leaked"),
    [
        (Reading(64, 64, 200), False),
        (Reading(65, 0, 0), True),
        (Reading(0, 65, 0), True),
        (Reading(0, 0, 201), True),
    ],
)
def test_any_growth_beyond_its_limit_is_a_leak(grown: Reading, leaked: bool) -> None:
    assert grown.leaked(64.0) is leaked


def test_a_report_says_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    steady = readings(*[100] * (soak.FILLING + 4))
    assert not soak.report(steady, [], 64.0)
    assert soak.report(steady, ["error 1"], 64.0)
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "FAILED" and ", 1 wrong;" in said[-2] and "passed" in said


def test_rounds_have_calls_of_twelve_families_and_drop_four() -> None:
    families = soak.drawn(TrainingStep, 0)
    assert families == soak.drawn(TrainingStep, 0) != soak.drawn(TrainingStep, 1)
    for calls in families:
        assert len({(each.batch, each.seqlen_q, each.seqlen_k) for each in calls}) > 70
        assert len({replace(each, batch=1, seqlen_q=1, seqlen_k=1) for each in calls}) == 1
    assert len({calls[0].kind for calls in families}) > 1
    cycle = soak.FAMILIES // soak.CHANGED
    first, second, again = (soak.of_round(families, number) for number in (0, 1, cycle))
    kept = len(first) - soak.CHANGED * soak.LENGTHS
    assert first == again and first[-kept:] == second[:kept] and first[:-kept] != second[-kept:]
    assert {id(x) for n in range(cycle) for x in soak.of_round(families, n)} == {
        id(x) for calls in families for x in calls
    }
