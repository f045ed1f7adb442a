"""tunefa/store/journal_header.py: what a header says, and which trials it allows."""

from __future__ import annotations

from typing import Any

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.trial import Trial
from tunefa.store import journal_header
from tunefa.store.journal_header import SCHEMA, Limits

HEADER = {
    "tunefa_journal": SCHEMA,
    "workload": "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal",
    "arch": "sm90",
    "device": "NVIDIA H200",
    "objective": "measured",
    "mode": "eager",
    "provenance": {"a_kernel": {"date": "2026-01-01T00:00:00+00:00", "source_hash": "0123"}},
}


def limits(**changes: Any) -> Limits:
    return journal_header.check({**HEADER, **changes}, "j:1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tunefa_journal": True}, "this is not a journal of tunefa"),
        ({"tunefa_journal": 0}, "this is not a journal of tunefa"),
        ({"tunefa_journal": SCHEMA + 1}, "was written by a newer tunefa"),
        ({"workload": 5}, "'workload' must be text, not 5"),
        ({"arch": None}, "'arch' must be text, not None"),
        ({"device": ["NVIDIA H200"]}, "'device' must be text"),
        ({"objective": "guessed"}, "unknown objective 'guessed'"),
        ({"mode": "quick"}, "unknown mode 'quick'"),
        ({"provenance": 5}, "'provenance' must be a mapping, not 5"),
        ({"provenance": {"a_kernel": 5}}, "provenance: 'a_kernel' must be a mapping, not 5"),
        ({"provenance": {"a_kernel": {"date": 5}}}, "provenance of a_kernel: 'date' must be text"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TunefaError, match=f"^j:1: {says}"):
        limits(**changes)


def test_a_time_below_what_the_device_can_do_is_refused() -> None:
    """989.4 TFLOP/s at 1,830 MHz; the H200 may run at 1,980 MHz, and a race came to 830."""
    floor_us = 550e9 / (989.4e12 * 1980 / 1830) * 1e6
    assert limits().least_us == pytest.approx(floor_us, rel=1e-3)
    for us in (0.001, floor_us * 0.99):
        for trial in (Trial({}, "ok", samples_us=(900.0, us)), Trial({}, "ok", predicted_us=us)):
            assert "us is less than the 514 us" in str(limits().why_not(trial))
    assert limits().why_not(Trial({}, "ok", predicted_us=900.0, samples_us=(900.0,))) is None
    assert limits().why_not(Trial({}, "crashed")) is None


def test_a_prediction_has_no_samples() -> None:
    trial = Trial({}, "ok", predicted_us=900.0, samples_us=(900.0,))
    for objective in ("predicted", "modelled", "estimated"):
        assert "this search measured nothing" in str(limits(objective=objective).why_not(trial))
    assert limits(objective="replayed").why_not(trial) is None


@pytest.mark.parametrize("changes", [{"device": "NVIDIA T4"}, {"arch": "sm1"}, {"workload": "x"}])
def test_what_this_tunefa_does_not_know_has_no_least_time(changes: dict[str, Any]) -> None:
    assert limits(**changes).least_us == 0.0
