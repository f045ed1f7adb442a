"""benchmarks/bakeoff/held_out.py: which model predicts while a landscape is replayed."""

from __future__ import annotations

import pytest

from benchmarks.bakeoff import held_out
from tests.support.sample_learned import ARCH, CASE, KERNEL, MODEL, SLOWER
from tunefa.costmodel import learned
from tunefa.costmodel.estimate import by_model, expected_us


def test_the_model_is_in_use_and_one_that_learned_nothing_is_the_cost_model() -> None:
    config = {**CASE.default(), "BLOCK_M": 64, "num_warps": 4}
    (alone,) = by_model(None, CASE, [config], [None])
    with held_out.in_use(held_out.nothing_learned(MODEL)):
        assert expected_us(CASE, config) == alone.time_us
    with held_out.in_use(MODEL):
        assert expected_us(CASE, config) == pytest.approx(SLOWER * alone.time_us)
        held = learned.load(KERNEL, ARCH)
        assert held is not None and held.id == MODEL.id
    after = learned.load(KERNEL, ARCH)
    assert after is None or after.id != MODEL.id
