"""tunefa/costmodel/anchored.py: which trial is recommended, and why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.support.anchors import CUDA, GLUON, LONG, anchor, record
from tunefa.costmodel import anchored
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target
from tunefa.spec.trial import Resources, Trial

FITS = Resources(smem_bytes=200_000, registers=168, spill_bytes=0)
ANCHOR = anchor(record(CUDA), record(GLUON, median_us=745.0), text=LONG)
KNOWN, *OTHERS = ANCHOR.known
OTHER = next(each for each in OTHERS if each.kernel == GLUON)
OWN = Trial(KNOWN.config, "ok", resources=FITS, predicted_us=732.0)
RIVAL = Trial({**KNOWN.config, "BLOCK_N": 96}, "ok", resources=FITS, predicted_us=700.0)


def first(*tried: tuple[str, Trial]) -> Trial:
    return anchored.ranked(ANCHOR, tried)[0][1]


def test_the_known_config_comes_before_what_gains_less_than_the_error() -> None:
    assert first((CUDA, RIVAL), (CUDA, OWN)) == OWN
    better = replace(RIVAL, predicted_us=400.0)
    assert first((CUDA, OWN), (CUDA, better), (CUDA, RIVAL)) == better
    enough = replace(RIVAL, predicted_us=600.0)
    assert first((CUDA, OWN), (CUDA, enough)) == enough
    spilled = replace(enough, resources=replace(FITS, spill_bytes=8))
    assert first((CUDA, OWN), (CUDA, spilled)) == OWN


@pytest.mark.parametrize("kernel", [CUDA, GLUON])
def test_a_trial_wins_below_the_time_to_beat_and_not_above(kernel: str) -> None:
    best = ANCHOR.recommended
    assert best is not None
    own = best.kernel, replace(OWN, config=best.config, predicted_us=best.time_us)
    config = {**ANCHOR.cases[kernel].default(), "EPILOGUE_SUBTILE": 2}
    us = anchored.to_beat_us(ANCHOR, kernel, config)
    assert us < best.time_us * 0.97
    for factor, wins in ((0.999, True), (1.001, False)):
        rival = kernel, replace(RIVAL, config=config, predicted_us=us * factor)
        assert (anchored.ranked(ANCHOR, [own, rival])[0] == rival) is wins


def test_the_time_to_beat_is_one_for_all_configs_of_a_kernel() -> None:
    both = [anchored.to_beat_us(ANCHOR, CUDA, config) for config in (RIVAL.config, KNOWN.config)]
    assert both[0] == pytest.approx(both[1])
    nothing = anchor(text=LONG, target=Target.named("sm80"))
    config = nothing.cases["attention_fwd_triton"].default()
    assert math.isinf(anchored.to_beat_us(nothing, "attention_fwd_triton", config))


def test_where_the_known_config_failed_another_known_one_is_next() -> None:
    failed = Trial(OWN.config, "crashed", "why")
    other = Trial(OTHER.config, "ok", resources=FITS, predicted_us=745.0)
    right = [(CUDA, RIVAL), (GLUON, other)]
    assert first(*right) == other
    said = anchored.decision(ANCHOR, (GLUON, other), [*right, (CUDA, failed)])
    assert said.reason.startswith("the best by the model of what is right: the config measured")


def test_the_decision_names_the_nearest_rival() -> None:
    said = anchored.decision(ANCHOR, (CUDA, OWN), [(CUDA, OWN), (CUDA, RIVAL)])
    assert said.is_kept and said.gain > 0.0
    assert said.reason.startswith("the model sees nothing that beats the config measured for this")
    better = replace(RIVAL, predicted_us=400.0)
    said = anchored.decision(ANCHOR, (CUDA, better), [(CUDA, OWN), (CUDA, better)])
    assert not said.is_kept and said.reason.startswith("expected 83% faster than the config")


def test_a_trial_gets_the_time_that_records_say() -> None:
    judged = anchored.judged(ANCHOR, CUDA, replace(OWN, predicted_us=None))
    made = ANCHOR.expected(CUDA, OWN.config, FITS)
    assert (judged.predicted_us, judged.predicted_sd) == (made.time_us, made.sd)
    failed = Trial(OWN.config, "crashed", "why")
    assert anchored.judged(ANCHOR, CUDA, failed) == failed


def test_where_nothing_is_known_it_says_whether_the_model_was_ever_compared() -> None:
    assert "never compared with a device of sm80" in anchored.without_anchor(archs.load("sm80"))
    assert "no config is known" in anchored.without_anchor(archs.load("sm90"))
    said = anchored.without_anchor(archs.load("sm80"), passed_over=True)
    assert said.startswith("the fastest by the model, of those that spill no registers; the model")
