"""tunefa/sweep/predicted_gain.py: what the cost model promises of an item."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from tests.support.sweeping import KERNEL, made, plan
from tunefa.search.budget import Budget
from tunefa.sweep import clock as clocks
from tunefa.sweep import worker
from tunefa.sweep.clock import Clock
from tunefa.sweep.outcome import outcome
from tunefa.sweep.predicted_gain import Promises, gain, promised
from tunefa.sweep.requests import PROMISE

SMALL = "fwd_b1_h8_kv2_q512_k512_d64_bf16_causal"


def test_it_is_the_gain_of_the_least_expected_time() -> None:
    assert gain(100.0, [90.0, 0.0, math.inf, 80.0]) == pytest.approx(0.2)
    assert gain(100.0, [120.0]) == 0.0 and gain(100.0, []) == 0.0


def test_the_model_promises_a_part_of_the_time() -> None:
    found = promised([KERNEL], SMALL, "sm90", "NVIDIA H200")
    assert found is not None and 0.0 <= found < 1.0
    other = promised([KERNEL], SMALL, "sm90", "NVIDIA H200 of a Friend")
    assert other is not None
    assert promised(["attention_fwd_cudnn"], SMALL, "sm90", "NVIDIA H200") is None


def test_promises_are_noted_as_they_are_known(tmp_path: Path) -> None:
    study = made(tmp_path, plan(weights=dict([*plan().weights.items()][-1:])))
    study.note(clocks.NOTE, Clock.started(Budget(trials=100), 0.0).to_data())
    assert worker.targets(study.plan)
    until = time.monotonic() + 60
    with Promises() as promises:
        while not (notes := [n for n in study.notes if n.startswith(PROMISE)]):
            assert time.monotonic() < until
            promises.ask(study, outcome(study).items)
            time.sleep(0.1)
    (item,) = outcome(study).items
    assert notes == [PROMISE + item.key] and item.promise is not None
