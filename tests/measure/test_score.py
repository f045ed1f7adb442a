"""tunefa/measure/score.py: the arithmetic of rates and quartiles."""

from __future__ import annotations

import pytest

from tunefa.measure.score import Score
from tunefa.spec.workload import Workload

SCORE = Score((10.0, 20.0, 12.0, 11.0, 13.0), 2e-3, 4e-3, True)


def test_the_figures_of_a_score() -> None:
    assert SCORE.median_us == 12.0
    assert SCORE.spread == (11.0, 13.0)
    assert Score((7.0,), 0.0, 0.0, False).spread == (7.0, 7.0)
    workload = Workload.parse("b1_h1_q1000_d100_full")
    assert SCORE.tflops(workload) == pytest.approx(4 * 1000 * 1000 * 100 / 12e-6 / 1e12)
    assert SCORE.gb_per_s(workload) == pytest.approx((4 * 1000 * 100 * 2 + 4000) / 12e-6 / 1e9)


@pytest.mark.parametrize("samples", [(), (0.0, 1.0), (float("nan"),), (float("inf"), 1.0)])
def test_samples_that_are_no_times(samples: tuple[float, ...]) -> None:
    assert SCORE.is_timed
    assert not Score(samples, 0.0, 0.0, False).is_timed
