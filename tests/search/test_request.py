"""tunefa/search/request.py: what times are called, and which results come first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_objective import KERNEL, WORKLOAD, request
from tests.support.sample_records import predicted
from tunefa.measure import race
from tunefa.search.request import FinishedTrial, Result
from tunefa.spec.target import Target
from tunefa.spec.trial import Trial

NPU = Target.named("ascend910b3")
REPLAY: Any = SimpleNamespace(mode="graph")


@pytest.mark.parametrize(
    ("changes", "objective", "mode"),
    [
        ({}, "predicted", None),
        ({"measured": True}, "measured", "eager"),
        ({"measured": True, "mode": "graph"}, "measured", "graph"),
        ({"mode": "graph"}, "predicted", None),
        ({"target": NPU}, "modelled", None),
        ({"target": NPU, "estimate": True}, "estimated", None),
        ({"target": NPU, "measured": True}, "measured", "eager"),
        ({"replay": REPLAY}, "replayed", "graph"),
        ({"replay": REPLAY, "measured": True}, "replayed", "graph"),
    ],
)
def test_where_times_are_from(changes: dict[str, Any], objective: str, mode: str | None) -> None:
    asked = replace(request(), **changes)
    assert (asked.objective, asked.serving_mode) == (objective, mode)


def test_a_case_is_a_kernel_on_what_was_asked() -> None:
    case = request().case(KERNEL)
    assert (case.kernel, case.workload, case.target) == (KERNEL, WORKLOAD, request().target)


def result(*trials: Trial, best: Trial | None = None) -> Result:
    record = None if best is None else predicted(kernel="k", config=dict(best.config))
    finished = tuple(FinishedTrial("k", trial) for trial in trials)
    return Result(request(), record, finished, {}, 1.0, Path("journal"), None, False)


def screened(name: int, us: float) -> Trial:
    return Trial({"A": name}, "ok", samples_us=(us,) * (race.LOOK_EVERY - 1))


def raced(name: int, us: float) -> Trial:
    return Trial({"A": name}, "ok", samples_us=(us,) * race.LOOK_EVERY)


def test_those_that_raced_come_before_those_that_did_not() -> None:
    lucky, second, first = screened(0, 1.0), raced(1, 6.0), raced(2, 5.0)
    found = result(lucky, second, first).top(9)
    assert [each.trial for each in found] == [first, second, lucky]


def test_of_equals_the_record_comes_first() -> None:
    one, other = raced(0, 5.0), raced(1, 5.0)
    assert [each.trial for each in result(one, other, best=other).top(2)] == [other, one]
    assert [each.trial for each in result(one, other, best=one).top(2)] == [one, other]
    assert [each.trial for each in result(one, other).top(1)] == [one]


def test_only_what_is_right_and_has_a_time_is_among_the_best() -> None:
    wrong = replace(raced(0, 1.0), outcome="wrong")
    untimed, fine = Trial({"A": 1}, "ok"), raced(2, 9.0)
    assert [each.trial for each in result(wrong, untimed, fine).top(5)] == [fine]


def test_the_versions_that_another_process_found_out_have_the_date_and_source_of_now() -> None:
    found = {"torch": "2.0", "date": "1970-01-01", "source_hash": "before the file was changed"}
    asked = replace(request(), versions={KERNEL.name: found})
    made = asked.provenance(KERNEL)
    assert made["torch"] == "2.0" and made["date"] > "2020"
    assert made["source_hash"] == KERNEL.source_hash
    assert request().provenance(KERNEL)["source_hash"] == KERNEL.source_hash
