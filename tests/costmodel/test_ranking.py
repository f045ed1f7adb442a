"""tunefa/costmodel/ranking.py: a config that spills comes after one without spills that is near."""

from __future__ import annotations

from dataclasses import replace

from tests.support.predicted_case import FITS, ok
from tunefa.costmodel.ranking import MODEL_ERROR, rank_us
from tunefa.spec.trial import Trial

SPILLED = replace(ok(64, 100.0), resources=replace(FITS, spill_bytes=8))


def test_within_the_model_s_error_what_does_not_spill_comes_first() -> None:
    near, far = 100.0 * (1 + MODEL_ERROR) - 0.1, 100.0 * (1 + MODEL_ERROR) + 0.1
    assert rank_us(ok(64, near)) < rank_us(SPILLED) < rank_us(ok(64, far))


def test_what_was_measured_is_not_doubted() -> None:
    assert rank_us(replace(SPILLED, samples_us=(90.0,))) == 90.0
    assert rank_us(Trial({}, "crashed")) == float("inf")
