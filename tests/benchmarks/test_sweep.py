"""benchmarks/sweep.py: a sweep of recorded landscapes, and equal shares."""

from __future__ import annotations

import pytest

from benchmarks import sweep
from benchmarks.bakeoff.runs import Course
from tunefa.store import landscape


@pytest.fixture(scope="module")
def courses() -> list[Course]:
    """Four small workloads; the default of one is 33 % slower than its best config."""
    named = ("*q1024_k16384*", "*d256_bf16_full*", "*q16384_k16384_d128_e4m3*", "*d192_bf16_full*")
    found = [next(path for path in sweep.LANDSCAPES.glob(sweep.NAMES) if path.match(name))
             for name in named]  # fmt: skip
    return [Course(landscape.load(path)) for path in found]


def test_a_quarter_of_the_budget_saves_most_of_what_equal_shares_save(
    courses: list[Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "TRIALS_EACH", 16)
    rows = [sweep.row(courses, seed) for seed in range(3)]
    for row in rows:
        assert list(row.saved) == sorted(row.saved)
        assert 0.0 < row.equal <= row.best
        assert row.saved[-1] <= row.best
    quarter = sweep.MARKS.index(0.25)
    saved = sum(row.saved[quarter] for row in rows) / sum(row.equal for row in rows)
    assert saved >= 0.8


def test_equal_shares_are_equal(courses: list[Course], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "TRIALS_EACH", 6)
    course = sweep.sweep(courses, 0, sweep.equal)
    assert [used for used, _ in course] == [0.0, 6.0, 12.0, 18.0, 24.0]
    assert sweep.saved_at(course, 17.0) == course[2][1]
    granted = sweep.sweep(courses, 0, sweep.expected)
    assert granted[-1][0] <= 24.0
