"""tunefa/costmodel/accuracy.py: the figures of predicted times, and what is held out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.support.fake_objective import KERNEL, TARGET
from tunefa.costmodel import accuracy
from tunefa.costmodel.accuracy import Predictor
from tunefa.costmodel.training_rows import Row
from tunefa.spec.target import Case
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload

TIMES = [10.0 + 0.1 * n for n in range(20)]


def test_a_prediction_that_is_off_by_a_factor_ranks_perfectly() -> None:
    found = accuracy.accuracy(TIMES, [0.5 * us for us in TIMES])
    assert found.rank_correlation == found.best_tenth == pytest.approx(1.0)
    assert found.pick_over_best == 1.0 and found.configs == 20
    assert found.level == found.error == pytest.approx(math.log(2.0))
    assert found.spread == pytest.approx(0.0, abs=1e-9)


def test_the_best_tenth_is_looked_at_on_its_own() -> None:
    """The first eight are in reverse order, all others in their own."""
    reversed_ = [*TIMES[7::-1], *TIMES[8:]]
    found = accuracy.accuracy(TIMES, reversed_)
    assert found.best_tenth == pytest.approx(-1.0) and found.rank_correlation > 0.7
    assert found.pick_over_best == pytest.approx(TIMES[7] / TIMES[0])


def test_only_configs_near_the_best_have_errors_that_count() -> None:
    found = accuracy.accuracy([*TIMES, 100.0], [*TIMES, 10.0])
    assert found.error == 0.0
    found = accuracy.accuracy([10.0, 10.0], [10.0 * math.e, 10.0 / math.e])
    assert found.level == pytest.approx(0.0) and found.spread == pytest.approx(1.0)
    assert found.comparison_sd == pytest.approx(math.sqrt(2.0))


def test_a_config_that_was_expected_not_to_run_is_the_last() -> None:
    found = accuracy.accuracy([1.0, 2.0, 3.0], [math.inf, 2.0, 3.0])
    assert found.pick_over_best == 2.0 and found.rank_correlation == pytest.approx(-0.5)
    assert accuracy.accuracy([1.0], [math.inf]).error == 0.0


def test_equal_predictions_say_nothing() -> None:
    assert accuracy.accuracy([1.0, 2.0, 3.0], [5.0, 5.0, 6.0]).pick_over_best == 1.5
    assert accuracy.spearman([1.0, 2.0], [5.0, 5.0]) == 0.0


def rows_of(seqlen: int, *times: float | None) -> list[Row]:
    case = Case(KERNEL, Workload.parse(f"q{seqlen}"), TARGET)
    return [Row(case, Trial({"BLOCK_M": 64}, "ok"), time_us) for time_us in times]


def test_what_is_tested_was_not_learned_from() -> None:
    rows = [*rows_of(1024, 1.0, 2.0), *rows_of(2048, 3.0, None), *rows_of(4096, 5.0)]
    learned: list[set[int]] = []
    tested: list[set[int]] = []

    def seqlens(some: Sequence[Row]) -> set[int]:
        return {row.case.workload.seqlen_q for row in some}

    def fit(some: list[Row]) -> Predictor:
        learned.append(seqlens(some))

        def predictor(own: Sequence[Row]) -> list[float]:
            tested.append(seqlens(own) | {-len(learned)})
            return [2.0 * (row.time_us or 0.0) for row in own]

        return predictor

    found = accuracy.held_out(rows, fit, lambda row: row.case.workload.seqlen_q)
    device = TARGET.device.name
    assert [*found] == sorted((device, str(row.case.workload)) for row in rows[::2])
    assert learned == [{2048, 4096}, {1024, 4096}, {1024, 2048}]
    assert tested == [{1024, -1}, {2048, -2}, {4096, -3}]
    assert sum(each.configs for each in found.values()) == 4, "a failure has no time"
    assert accuracy.error(found) == pytest.approx(math.log(2.0))

    learned.clear()
    accuracy.held_out(rows, fit, lambda row: row.case.workload.seqlen_q, folds=2)
    assert learned == [{2048}, {1024, 4096}], "three workloads, two fits"
