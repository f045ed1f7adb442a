"""tunefa/costmodel/decision.py: a gain counts where it exceeds the error of the comparison."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tunefa.costmodel.decision import SURE, Expected, comparison_sd, decide

KNOWN = Expected("a", {"N": 1}, 100.0, 0.03, 0.02, source="the default measured on NVIDIA H200")
NEW = Expected("a", {"N": 2}, 100.0, 0.03, 0.06)


def faster(rival: Expected, error: float) -> Expected:
    """The rival, faster than the known config by so many times the error."""
    gain = error * SURE * comparison_sd(KNOWN, rival)
    return replace(rival, time_us=100.0 * math.exp(-gain))


def test_variances_add_and_a_kernel_s_level_cancels() -> None:
    assert comparison_sd(KNOWN, NEW) == pytest.approx(math.hypot(0.02, 0.06))
    other = replace(NEW, kernel="b", level_sd=0.1)
    assert comparison_sd(KNOWN, other) == pytest.approx(math.hypot(0.02, 0.06, 0.03, 0.1))
    assert NEW.sd == pytest.approx(math.hypot(0.03, 0.06))


@pytest.mark.parametrize("kernel", ["a", "b"])
def test_a_gain_beyond_the_error_replaces_the_known_config(kernel: str) -> None:
    new = replace(NEW, kernel=kernel)
    for times, is_kept in ((1.02, False), (0.98, True), (-1.0, True)):
        rival = faster(new, times)
        made = decide(KNOWN, [rival])
        assert made.is_kept is is_kept and made.winner == (KNOWN if is_kept else rival)
        assert made.gain == pytest.approx(times * made.error)
        assert made.to_dict()["kept"] is is_kept


def test_of_several_the_surest_wins() -> None:
    unsure = replace(faster(replace(NEW, own_sd=0.2), 1.01), config={"N": 3})
    sure = faster(NEW, 1.5)
    assert unsure.time_us < sure.time_us
    assert decide(KNOWN, [unsure, sure]).winner == sure


def test_the_decision_is_said_in_words() -> None:
    kept = decide(KNOWN, [faster(NEW, 0.9)])
    known = "the default measured on NVIDIA H200"
    error = math.expm1(SURE * math.hypot(0.02, 0.06))
    said = f"the model sees nothing that beats {known} beyond its error of {error:.0%}"
    assert kept.reason == kept.to_dict()["decision"] == said
    made = decide(KNOWN, [faster(NEW, 2.0)])
    assert made.reason == (
        f"expected {math.expm1(made.gain):.0%} faster than {known}, beyond the comparison's error "
        f"of {error:.0%}"
    )
    alone = decide(KNOWN, [KNOWN])
    assert alone.reason == f"{known}: no other config was compared with it"
    assert "gain" not in alone.to_dict() and alone.to_dict()["known"]["config"] == {"N": 1}


@pytest.mark.parametrize("time_us", [0.0, math.inf])
def test_what_has_no_expected_time_replaces_nothing(time_us: float) -> None:
    assert decide(KNOWN, [replace(NEW, time_us=time_us)]).winner == KNOWN
    unknown = replace(KNOWN, time_us=time_us)
    assert decide(unknown, [faster(NEW, 9.0)]).winner == unknown
