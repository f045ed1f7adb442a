"""tunefa/store/prediction.py: intervals of predicted times, and the sentences about them."""

from __future__ import annotations

import math
import random

import pytest

from tests.support.sample_exports import GUESS, evaluate
from tests.support.sample_records import dated, measured, predicted
from tunefa.store import exports, prediction
from tunefa.store.prediction import COVERAGE, Interval

ANCHORED = predicted(
    "fwd_q8192",
    config={**GUESS.config},
    median_us=700.0,
    certificate={"decision": "the model sees nothing\nthat beats the default\x1b[31m\u2028"},
    provenance=dated("2026-01-31", predicted_sd=0.045, compared_with=["NVIDIA H200"]),
)


def test_an_interval_holds_nine_of_ten_times() -> None:
    rng = random.Random(0)
    found = Interval.around(200.0, 0.2)
    assert found is not None
    times = [200.0 * math.exp(rng.gauss(0.0, 0.2)) for _ in range(4000)]
    inside = sum(found.low_us <= each <= found.high_us for each in times)
    assert inside / len(times) == pytest.approx(COVERAGE, abs=0.02)


@pytest.mark.parametrize(
    ("time_us", "sd", "said"),
    [(700.0, 0.045, "650 to 754"), (5000.0, 0.1, "4,242 to 5,894"), (9.0, 0.1, "7.6 to 10.6")],
)
def test_an_interval_is_short_to_read(time_us: float, sd: float, said: str) -> None:
    assert str(Interval.around(time_us, sd)) == said


@pytest.mark.parametrize(("time_us", "sd"), [(None, 0.1), (math.inf, 0.1), (5.0, None), (5.0, 0.0)])
def test_there_is_none_without_a_time_and_its_error(
    time_us: float | None, sd: float | None
) -> None:
    assert Interval.around(time_us, sd) is None


@pytest.mark.parametrize("sd", [None, 0.0, -1.0, True, "0.1", 1e6])
def test_an_odd_record_has_none(sd: object) -> None:
    made = dated("2026-01-31", predicted_sd=sd)
    assert Interval.of(predicted(provenance=made)) is None
    assert Interval.of(measured(provenance=dated("2026-01-31", predicted_sd=0.1))) is None


def test_sentences_of_a_prediction_are_one_line_each() -> None:
    assert prediction.sentences(ANCHORED) == [
        f"{ANCHORED.summary}, 90% interval 650 to 754 us",
        "Recommended: the model sees nothing that beats the default?[31m",
        "The model's times were compared with measurements on NVIDIA H200.",
    ]
    assert prediction.sentences(measured()) == [measured().summary]
    old = predicted(certificate={"decision": ["no text"]})
    assert prediction.sentences(old) == [old.summary]


def test_an_arch_without_devices_was_never_compared() -> None:
    assert prediction.compared("sm80", []) == (
        "The model's times were never compared with measurements on an sm80 device: its figures "
        "come from published data only."
    )


@pytest.mark.parametrize("name", ["flex", "triton"])
def test_they_are_comments_in_generated_source(name: str) -> None:
    """A sentence of an imported record must not become code."""
    hostile = {"decision": "fine\nHACKED = 1\r\nHACKED = 2\x0cHACKED = 3"}
    made = dated("2026-01-31", predicted_sd=0.1, compared_with=["H\nHACKED = 4"])
    text = exports.get(name).dump([predicted(certificate=hostile, provenance=made)])
    assert "HACKED" not in {line.split()[0] for line in text.splitlines() if line.split()}
    assert (
        "# Recommended: fine HACKED = 1" in text
        and "compared with measurements on H HACKED = 4" in text
    )


def test_python_modules_hold_them() -> None:
    text = exports.get("python").dump([ANCHORED, measured()])
    first, second = evaluate(text)["RECORDS"]
    guess = next(each for each in (first, second) if each["objective"] == "predicted")
    known = next(each for each in (first, second) if each["objective"] == "measured")
    assert guess["interval_us"] == pytest.approx([650.1, 753.8], abs=0.1)
    assert guess["remarks"] == prediction.sentences(ANCHORED)[1:] and "remarks" not in known
