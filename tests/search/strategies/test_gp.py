"""tunefa/search/strategies/gp.py: Optuna's Gaussian process learns where the good configs are."""

from __future__ import annotations

import statistics

from tests.support.sample_problem import BEST, good, landscape_us, proposals


def test_it_learns_where_good_configs_are() -> None:
    """Configs after the first ten, which it draws by chance, are better than these ten."""
    times = [landscape_us(config) for config in proposals("gp", 17, good, seed=1)]
    assert statistics.median(times[10:]) < 0.8 * statistics.median(times[:10])
    assert min(times) < 1.2 * landscape_us(BEST)
