"""tunefa/costmodel/learning.py: what is boosted, and with which weights. Needs scikit-learn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.sample_learned import CASE, MODEL, SLOWER
from tunefa.costmodel import learning
from tunefa.costmodel.accuracy import accuracy
from tunefa.costmodel.estimate import by_model
from tunefa.costmodel.training_rows import Row
from tunefa.errors import TunefaError
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

pytest.importorskip("sklearn")
CONFIGS = CASE.feasible().configs[::20]


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MEMBERS", 2)
    monkeypatch.setattr(learning, "ITERATIONS", 15)
    monkeypatch.setattr(learning, "FEATURES_PER_SPLIT", 1.0)


def rows(workload: str = str(CASE.workload), slower: float = SLOWER) -> list[Row]:
    """Times of the cost model, but those of at most 64 rows are `slower`."""
    case = replace(CASE, workload=Workload.parse(workload))
    made = by_model(None, case, CONFIGS, [None] * len(CONFIGS))
    return [
        Row(case, Trial(config, "ok"), each.time_us * (slower if config["BLOCK_M"] <= 64 else 1.0))
        for config, each in zip(CONFIGS, made, strict=True)
        if math.isfinite(each.time_us)
    ]


def off(model: object, some: list[Row]) -> float:
    """The largest error of a time, as a logarithm."""
    times = learning.times_us(model, some)  # type: ignore[arg-type]
    return max(
        abs(math.log((row.time_us or 0.0) / us)) for row, us in zip(some, times, strict=True)
    )


def test_a_fit_finds_what_the_cost_model_misses() -> None:
    some = rows()
    failed = Row(CASE, Trial(CONFIGS[0], "timeout"), None)
    model = learning.fit([*some, failed])
    assert off(None, some) == pytest.approx(math.log(SLOWER))
    assert off(model, some) < 0.12
    assert model.id == learning.fit(some).id, "a fit is the same each time"
    assert model.provenance["trials"] == len(some)
    assert model.provenance["workloads"] == [str(CASE.workload)]


def test_the_trees_are_those_that_scikit_learn_would_evaluate() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    values = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
    target = values[:, 0] * np.where(values[:, 1] > 0, 1.0, -1.0)
    boosted = HistGradientBoostingRegressor(max_iter=5, random_state=0).fit(values, target)
    trees = learning._joined([learning._tree(each[0].nodes, 1.0) for each in boosted._predictors])
    ours = trees.total(values) + boosted._baseline_prediction.item()
    assert ours == pytest.approx(boosted.predict(values), abs=1e-5)


def test_a_base_is_corrected_and_not_learned_again() -> None:
    half = rows(slower=math.sqrt(SLOWER))
    model = learning.fit(half, MODEL)
    assert off(model, half) < 0.12 < off(MODEL, half)
    assert model.trees.count == MODEL.trees.count + 30 and len(model.places) == 2
    assert model.provenance["base"] == MODEL.id
    other = replace(MODEL, names=MODEL.names[1:])
    assert learning.fit(half, other).trees.count == 30, "a base with other features is left out"


def test_compiled_resources_are_learned_from_too() -> None:
    """Each config is learned from with both, and its time is the same."""
    spilled = Resources(65536, 255, 300)
    some = [replace(row, trial=replace(row.trial, resources=spilled)) for row in rows()]
    compiled, expected = learning._samples(some)
    spills = compiled.found.names.index("log spills")
    assert (compiled.found.values[:, spills] > 5.0).all()
    assert not (expected.found.values[:, spills] > 5.0).all()
    times = [np.exp(each.residual) * each.found.analytic_us for each in (compiled, expected)]
    assert set(times[0].round(6)) <= {round(row.time_us or 0.0, 6) for row in some}
    assert set(times[1].round(6)) == {round(row.time_us or 0.0, 6) for row in some}


def test_only_the_best_and_some_of_the_rest_count_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learning, "MOST_CONFIGS", 40)
    some = rows()
    compiled, expected = learning._samples(some)
    assert len(compiled.residual) == len(expected.residual) == 40
    best = sorted(row.time_us or 0.0 for row in some)[:20]
    times = np.exp(expected.residual) * expected.found.analytic_us
    assert times[:20] == pytest.approx(best)
    assert expected.weight.sum() == pytest.approx(100.0)
    assert expected.weight[0] == expected.weight.max()


def test_calibration_is_the_root_mean_square_over_held_out_workloads() -> None:
    times = [10.0, 10.0]
    exact, wide = accuracy(times, times), accuracy(times, [10.0 * math.e, 10.0 / math.e])
    figures = learning.calibrated(MODEL, [exact, wide], [wide, wide]).figures
    assert figures is not None and figures.workloads == 2
    assert figures.sd == pytest.approx(math.sqrt(0.5))
    assert figures.comparison_sd == pytest.approx(1.0)
    assert figures.analytic_sd == pytest.approx(1.0)
    assert figures.analytic_comparison_sd == pytest.approx(math.sqrt(2.0))


def test_failures_alone_teach_nothing() -> None:
    with pytest.raises(TunefaError, match="no measured time"):
        learning.fit([Row(CASE, Trial(CONFIGS[0], "timeout"), None)])
