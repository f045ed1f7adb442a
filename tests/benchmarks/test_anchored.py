"""benchmarks/anchored.py: what a landscape says of a recommendation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import anchored
from benchmarks.anchored import Replayed
from tunefa import assets
from tunefa.costmodel.decision import Expected
from tunefa.spec.trial import identity
from tunefa.store import landscape, results

KNOWN = Expected("k", {"A": 0}, 100.0, 0.1, 0.0, source="the default measured on a device")
FAST = Expected("k", {"A": 1}, 90.0, 0.1, 0.1)
EQUAL = replace(FAST, config={"A": 2})
EXCESS = {identity({"A": 0}): 0.05, identity({"A": 1}): 0.30, identity({"A": 2}): 0.10}
ONE = Replayed("b1", "k", KNOWN, [FAST, EQUAL], EXCESS)


def test_a_recommendation_depends_on_how_sure_it_must_be() -> None:
    """The gain is 1.05 standard deviations; of equal times the mean counts."""
    excess, is_new = ONE.recommended(1.0)
    assert excess == pytest.approx(0.2) and is_new
    assert ONE.recommended(1.1) == (0.05, False)


def test_the_table_has_a_row_for_each_limit() -> None:
    lines = anchored.table([ONE]).splitlines()
    assert lines[2] == "| 0 | 20.0% | 20.0% | 20.0% | 14.3% | 1 of 1 | 0 |"
    assert lines[-2] == "| 3 | 5.0% | 5.0% | 5.0% | 0.0% | 0 of 1 | 0 |"
    assert lines[-1] == "| the known config | 5.0% | 5.0% | 5.0% | | | |"


def test_a_landscape_is_replayed_without_its_own_records() -> None:
    [path] = (anchored.FOLDER / "sampled").glob("*b4_h8_kv8_q4096_k4096_d256*gluon*")
    found, records = landscape.load(path), results.Store([assets.root("results")]).records()
    own = [record for record in records if record.workload == found.workload]
    [made] = anchored.replayed(found, records)
    assert own and made.known.record not in own and made.known.source
    assert made.rivals and all(identity(rival.config) in made.excess for rival in made.rivals)
