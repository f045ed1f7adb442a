"""Fits learned models to measured trials. Needs scikit-learn; `tunefa.costmodel.learned` evaluates.

The model is the mean of some gradient-boosted regressions, which differ by their random numbers.
Each is fitted to log(measured / cost model's time), with the compiler's resources and again with
expected ones, because configs are ranked before they are compiled too. All workloads count the
same, and within one the fast configs count most: nobody asks how slow the slow ones are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import numpy as np

from tunefa._version import __version__
from tunefa.costmodel import estimate, learned
from tunefa.costmodel.accuracy import Accuracy
from tunefa.costmodel.features import Features, features
from tunefa.costmodel.learned import Array, HeldOut, LearnedModel, Trees
from tunefa.costmodel.training_rows import Row, place
from tunefa.errors import TunefaError

# The constants were chosen on the recorded landscapes of an H200, by the ranks of the best tenth of
# workloads that were held out in groups: docs/model.md.
MEMBERS = 4
ITERATIONS = 100
LEAVES = 24
DEPTH = 6
LEAST_IN_LEAF = 40
"""Rows in a leaf; a config has two rows."""
FEATURES_PER_SPLIT = 0.3
NEAR = 0.1
"""The weight of a config is 1 / (1 + excess / NEAR)^2: a quarter at 10 % behind the best."""
MOST_CONFIGS = 1500
"""The most configs of a workload that count. Where it has more, half of these are the best, and
half are drawn at random."""


@dataclass(frozen=True)
class _Sample:
    """The features, residuals and weights of one case's configs."""

    found: Features
    residual: Array
    weight: Array


def fit(rows: Sequence[Row], base: LearnedModel | None = None) -> LearnedModel:
    """Returns a model of the rows of one kernel on one arch; rows without a time do not count.

    With a `base`, the model adds to it what it misses. Raises TunefaError if there is no row with a
    time.
    """
    groups = list(_by_case(rows))
    samples = [sample for own in groups for sample in _samples(own)]
    if not samples:
        raise TunefaError("there is no measured time to learn from")
    names = samples[0].found.names
    values = np.concatenate([each.found.values for each in samples])
    target = np.concatenate([each.residual for each in samples])
    if base is not None and base.names != names:
        base = None
    if base is not None:
        target = target - base.bias - base.trees.total(values)
    bias, trees = _boosted(values, target, np.concatenate([each.weight for each in samples]))
    places = np.array([learned.place(own[0].case) for own in groups])
    if base is not None:
        bias, trees = bias + base.bias, _joined([base.trees, trees])
        places = np.concatenate([base.places, places])
    case = rows[0].case
    return LearnedModel(
        case.kernel.name, case.arch.name, names, bias, trees, places, _reach(places),
        provenance=_provenance(groups, base),
    )  # fmt: skip


def times_us(model: LearnedModel | None, rows: Sequence[Row]) -> list[float]:
    """Returns the predicted time of each row in us, for None that of the cost model alone.

    The rows have the compiler's resources.
    """
    found = dict.fromkeys(range(len(rows)), 0.0)
    cases: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        cases.setdefault(place(row), []).append(index)
    for own in cases.values():
        trials = [rows[index].trial for index in own]
        made = estimate.by_model(
            model, rows[own[0]].case, [t.config for t in trials], [t.resources for t in trials]
        )
        found.update(zip(own, (each.time_us for each in made), strict=True))
    return list(found.values())


def calibrated(
    model: LearnedModel, held_out: Iterable[Accuracy], analytic: Iterable[Accuracy]
) -> LearnedModel:
    """Returns the model with its errors: `held_out` are those on workloads that models of its kind
    were not learned from, `analytic` those of the cost model alone."""
    ours, plain = list(held_out), list(analytic)
    figures = HeldOut(
        len(ours),
        _rms(each.error for each in ours),
        _rms(each.comparison_sd for each in ours),
        _rms(each.error for each in plain),
        _rms(each.comparison_sd for each in plain),
    )
    return replace(model, figures=figures)


def _rms(values: Iterable[float]) -> float:
    return math.sqrt(float(np.mean(np.square(list(values)))))


def _by_case(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields the rows with a time, by workload and device."""
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.time_us is not None:
            cases.setdefault(place(row), []).append(row)
    yield from cases.values()


def _samples(rows: Sequence[Row]) -> Iterator[_Sample]:
    """Yields what a case's rows teach, with the compiler's resources and with expected ones."""
    times = np.array([row.time_us for row in rows], dtype=float)
    chosen = np.argsort(times, kind="stable")
    if len(chosen) > MOST_CONFIGS:
        best, others = np.split(chosen, [MOST_CONFIGS // 2])
        drawn = np.random.default_rng(0).choice(others, MOST_CONFIGS // 2, replace=False)
        chosen = np.concatenate([best, np.sort(drawn)])
    times = times[chosen]
    weight = (1.0 + (times / times.min() - 1.0) / NEAR) ** -2.0
    configs = [rows[index].trial.config for index in chosen]
    for needed in ([rows[index].trial.resources for index in chosen], None):
        found = features(rows[0].case, configs, needed)
        fits = np.isfinite(found.analytic_us)
        kept = Features(found.names, found.values[fits], found.analytic_us[fits])
        share = weight[fits] * (100.0 / max(weight[fits].sum(), 1e-9))
        yield _Sample(kept, np.log(times[fits] / kept.analytic_us), share)


def _boosted(values: Array, target: Array, weight: Array) -> tuple[float, Trees]:
    """Returns the mean of the boosted regressions: a constant, and trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    bias, trees = 0.0, []
    for seed in range(MEMBERS):
        grown = HistGradientBoostingRegressor(
            max_iter=ITERATIONS, max_leaf_nodes=LEAVES, max_depth=DEPTH,
            min_samples_leaf=LEAST_IN_LEAF, max_features=FEATURES_PER_SPLIT,
            l2_regularization=1.0, early_stopping=False, random_state=seed,
        ).fit(values, target, sample_weight=weight)  # fmt: skip
        # scikit-learn has no public name for the nodes of these trees.
        bias += float(grown._baseline_prediction.item()) / MEMBERS
        trees += [_tree(each[0].nodes, 1.0 / MEMBERS) for each in grown._predictors]
    return bias, _joined(trees)


def _tree(nodes: Any, scale: float) -> Trees:
    """Returns one tree of scikit-learn; its values are multiplied by `scale`."""
    leaf = nodes["is_leaf"].astype(bool)
    itself = np.arange(len(nodes))
    child = np.stack([np.where(leaf, itself, nodes[side]) for side in ("left", "right")], axis=1)
    return Trees(
        count=1,
        depth=int(nodes["depth"].max()),
        feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.int16),
        threshold=np.where(leaf, np.inf, nodes["num_threshold"]).astype(np.float32),
        child=child.astype(np.int32),
        value=np.where(leaf, scale * nodes["value"], 0.0).astype(np.float32),
    )


def _joined(parts: Sequence[Trees]) -> Trees:
    """Returns the trees of all parts; the roots come first."""
    start = np.cumsum([0, *(len(each.feature) for each in parts)])
    placed = list(zip(parts, start, strict=False))
    roots = [offset + number for each, offset in placed for number in range(each.count)]
    rest = np.setdiff1d(np.arange(start[-1]), roots)
    chosen = np.concatenate([np.array(roots, dtype=int), rest])
    moved = np.empty(len(chosen), dtype=np.int32)
    moved[chosen] = np.arange(len(chosen))
    child = np.concatenate([each.child + offset for each, offset in placed])
    return Trees(
        len(roots),
        max(each.depth for each in parts),
        np.concatenate([each.feature for each in parts])[chosen],
        np.concatenate([each.threshold for each in parts])[chosen],
        moved[child[chosen]],
        np.concatenate([each.value for each in parts])[chosen],
    )


def _reach(places: Array) -> float:
    """Returns how far most places are from their nearest neighbour, at least 1."""
    distance = np.abs(places[:, None] - places).sum(axis=2)
    apart = np.where(distance > 0.0, distance, np.inf).min(axis=1)
    finite = apart[np.isfinite(apart)]
    return max(1.0, float(np.quantile(finite, 0.9))) if len(finite) else 1.0


def _provenance(groups: Sequence[Sequence[Row]], base: LearnedModel | None) -> dict[str, Any]:
    """Returns what the model comes from."""
    cases = [own[0].case for own in groups]
    return {
        "tunefa": __version__,
        "scikit-learn": metadata.version("scikit-learn"),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source_hash": cases[0].kernel.source_hash,
        "devices": sorted({case.device.name for case in cases}),
        "workloads": sorted({str(case.workload) for case in cases}),
        "trials": sum(map(len, groups)),
        **({"base": base.id} if base is not None else {}),
    }
