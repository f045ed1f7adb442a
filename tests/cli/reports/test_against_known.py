"""tunefa/cli/reports/against_known.py: a config beside the best known one, in words."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from tests.cli.conftest import Run
from tests.support.explained_case import CONFIG, asked
from tests.support.made_here import made_here
from tunefa.cli.reports.against_known import AgainstKnown
from tunefa.costmodel.decision import Expected
from tunefa.store import results as store

CASE = asked("q8192", "sm90")
KNOWN = Expected("attention_fwd_triton", CONFIG, 100.0, 0.03, 0.02, "the default measured on X")


def beside_known(time_us: float) -> AgainstKnown:
    """A config that takes so long, beside one that takes 100 us."""
    other = replace(KNOWN, config={**CONFIG, "num_stages": 3}, time_us=time_us, source="")
    return AgainstKnown(CASE, other, KNOWN)


@pytest.mark.parametrize(
    ("time_us", "words"),
    [
        (
            50.0,
            "expected to be 100% faster than the default measured on X, beyond the comparison's",
        ),
        (99.0, "expected to be 1% faster than the default measured on X, within the comparison's"),
        (101.0, "expected to be 1% slower than the default measured on X, within the comparison's"),
        (
            150.0,
            "expected to be 50% slower than the default measured on X, beyond the comparison's",
        ),
        (math.inf, "it cannot be compared with the default measured on X"),
    ],
)
def test_a_config_is_compared_with_the_best_known_one(time_us: float, words: str) -> None:
    found = beside_known(time_us).sentence
    assert found.startswith(words)
    assert ("cannot tell the two apart" in found) == ("within" in words)


def test_the_best_known_one_says_so() -> None:
    found = AgainstKnown(CASE, KNOWN, KNOWN)
    assert found.sentence == "this is the default measured on X, the best that is known here"
    nothing = AgainstKnown(CASE, KNOWN, None)
    assert nothing.sentence == "no config is known to be good for such workloads"
    assert nothing.to_data() is None


def test_explain_says_it(run: Run) -> None:
    store.default_store().add(made_here("q8192", median_us=900.0))
    words = ("explain", "--seqlen", "8192", "--no-compile", "--arch")
    out = " ".join(run(*words, "h200").stdout.split())
    assert "This is the config measured for this workload on NVIDIA H200, the best" in out
    said = "us; what was learned from measurements (with the registers to be expected) changes "
    assert said in out
    assert ", and the nearest measured record by " in out
    data = json.loads(run(*words, "h200", "--json").stdout)
    assert data["best_known"]["config"] == data["config"]
    assert data["predicted_us"] == data["best_known"]["time_us"] == 900.0
    assert data["interval_us"][0] < data["predicted_us"] < data["interval_us"][1]
    out = run(*words, "sm80").stdout
    assert "No config is known to be good for such workloads.\n" in out
    assert json.loads(run(*words, "sm80", "--json").stdout)["best_known"] is None
