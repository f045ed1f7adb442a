"""tunefa/search/strategies/tpe.py: Optuna's TPE learns where the good configs are."""

from __future__ import annotations

import statistics

from tests.support.sample_problem import BEST, good, landscape_us, proposals


def test_it_learns_where_good_configs_are() -> None:
    """Configs after the first ten, which TPE draws by chance, are better than these ten."""
    proposed = proposals("tpe", 60, good, seed=1)
    times = [landscape_us(config) for config in proposed]
    assert statistics.median(times[-20:]) < 0.75 * statistics.median(times[:10])
    assert min(times) < 1.1 * landscape_us(BEST)


def test_another_seed_begins_elsewhere() -> None:
    assert proposals("tpe", 5, good, seed=3) != proposals("tpe", 5, good, seed=4)
