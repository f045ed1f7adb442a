"""tunefa/store/trial_data.py: what is read back of a trial, and what is none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tunefa.spec.trial import OUTCOMES, MemoryPlan, Resources, Trial
from tunefa.store import trial_data

CONFIG = {"BLOCK_M": 128, "num_warps": 8}
RESOURCES = Resources(smem_bytes=98304, registers=168, spill_bytes=0, stack_bytes=None, code="ab")
PLANNED = MemoryPlan({"ub": 0.35, "l1": -0.1}, {"unit_flag": False})
TRIALS = [
    Trial(CONFIG, "ok", "", RESOURCES, 5.0, (4.0, 6.0), 1e-3, 0.25, 0.06),
    Trial(CONFIG, "compile_failed", "UB overflow", Resources(ub_bytes=265216, planned=PLANNED)),
    *(Trial(CONFIG, outcome, "because") for outcome in OUTCOMES),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.outcome)
def test_what_is_written_is_read(trial: Trial) -> None:
    data = json.loads(json.dumps(trial.to_dict()))
    assert trial_data.read(data) == trial
    assert list(data["config"]) == list(CONFIG)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"outcome": "fine"}, "outcome must be one of ok, refused, .*, not 'fine'"),
        ({"outcome": ["ok"]}, "outcome must be one of"),
        ({"colour": "red"}, "'colour' is not a field of it"),
        ({"config": 5}, "config must be a mapping .*, not 5"),
        ({"config": {"BLOCK_M": [1]}}, "config must be a mapping of parameters to numbers"),
        ({"reason": None}, "reason must be text, not None"),
        ({"samples_us": 3}, "samples_us must be positive numbers, not 3"),
        ({"samples_us": [1.0, -1.0]}, "samples_us must be positive numbers"),
        ({"samples_us": [True]}, "samples_us must be positive numbers"),
        ({"predicted_us": 0}, "predicted_us must be a positive number or null, not 0"),
        ({"predicted_us": float("nan")}, "predicted_us must be a positive number or null, not nan"),
        ({"error": -1.0}, "error must be a number of at least 0 or null"),
        ({"compile_s": "1"}, "compile_s must be a number of at least 0 or null, not '1'"),
        ({"resources": 5}, "resources must be a mapping or null, not 5"),
        ({"resources": {"smem": 1}}, "'smem' is not a field of it"),
        ({"resources": {"registers": -1}}, "registers must be a whole number of at least 0"),
        ({"resources": {"code": 7}}, "code must be text or null, not 7"),
        ({"resources": {"planned": {"excess": {"ub": "x"}}}}, "excess must be a mapping"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        trial_data.read({**TRIALS[0].to_dict(), **change})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"config": CONFIG}, "outcome is missing"),
        ({"outcome": "ok"}, "config is missing"),
        ([1], r"it is not a mapping: \[1\]"),
    ],
)
def test_what_is_no_trial_is_refused(data: Any, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        trial_data.read(data)


def test_a_journal_from_before_a_field_was_there_is_read() -> None:
    assert trial_data.read({"config": CONFIG, "outcome": "ok"}) == Trial(CONFIG, "ok")
    plan = {"excess": {"ub": -0.5}, "code": "ab"}  # when only NPUs had a code
    held = trial_data.resources({"planned": plan})
    assert held == Resources(planned=MemoryPlan({"ub": -0.5}), code="ab")
    assert replace(TRIALS[0], resources=None) == trial_data.read(
        {**TRIALS[0].to_dict(), "resources": None}
    )
