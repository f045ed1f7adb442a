"""tunefa/costmodel/lesson.py: a model is kept where it is better on workloads it never saw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_objective import KERNEL, TARGET
from tunefa.costmodel import learned, learning, lesson
from tunefa.costmodel.training_rows import Row
from tunefa.spec.target import Case
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload

KNOWN = 8192
"""The sequence length of the workload that the shipped model was learned from."""
SHIPPED: Any = SimpleNamespace(
    factor=1.25,
    id="shipped",
    provenance={
        "workloads": [str(Workload.parse(f"q{KNOWN}"))],
        "devices": [TARGET.device.name],
    },
)


def rows(*seqlens: int) -> list[Row]:
    """Two configs of each workload, which take 100 us, and one that failed."""
    found = []
    for seqlen in seqlens:
        case = Case(KERNEL, Workload.parse(f"q{seqlen}"), TARGET)
        found += [Row(case, Trial({"BLOCK_M": m}, "ok"), 100.0) for m in (64, 128)]
        found.append(Row(case, Trial({"BLOCK_M": 32}, "timeout"), None))
    return found


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The sequence lengths of each fit. A model is off by a factor: 1.25 for what is shipped, and
    for a fit 1 + a thousandth of the number of workloads that it did not see."""
    seen: list[set[int]] = []

    def fit(some: Sequence[Row], base: Any) -> Any:
        assert base is SHIPPED
        seen.append({row.case.workload.seqlen_q for row in some})
        missing = 4 - len(seen[-1] - {KNOWN})
        return SimpleNamespace(factor=1.0 + 0.001 * missing, id=f"fit {len(seen)}")

    def times_us(model: Any, some: Sequence[Row]) -> list[float]:
        factor = 2.0 if model is None else model.factor
        return [(row.time_us or 0.0) * factor for row in some]

    def calibrated(model: Any, held_out: Iterable[Any], analytic: Iterable[Any]) -> Any:
        figures = [{each.error for each in some} for some in (held_out, analytic)]
        return SimpleNamespace(id=model.id, figures=figures)

    monkeypatch.setattr(learned, "shipped", lambda kernel, arch: SHIPPED)
    monkeypatch.setattr(learning, "fit", fit)
    monkeypatch.setattr(learning, "times_us", times_us)
    monkeypatch.setattr(learning, "calibrated", calibrated)
    return seen


def test_errors_are_those_on_workloads_that_were_held_out(fits: list[set[int]]) -> None:
    some, counted = rows(512, 1024, 2048, 4096), []
    found = lesson.learn(some, lambda: counted.append(1))
    assert (found.kernel, found.arch, found.devices) == (KERNEL.name, "sm90", ("NVIDIA H200",))
    assert (found.workloads, found.trials, found.failures) == (4, 8, 4)
    assert found.before == pytest.approx(math.log(1.25))
    assert found.after == pytest.approx(math.log(1.001)), "each fit lacked one workload"
    assert fits[-1] == {512, 1024, 2048, 4096} and found.model is not None
    assert found.model.id == "fit 5" and found.why_not == ""
    (held_out,), (analytic,) = found.model.figures  # type: ignore[misc]
    assert held_out == found.after and analytic == pytest.approx(math.log(2.0))
    assert len(counted) == len(fits) == lesson.fits(some) == 5


def test_a_worse_model_is_not_kept(fits: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHIPPED, "factor", 1.0001)
    found = lesson.learn(rows(512, 1024, 2048))
    assert found.model is None and found.why_not == "what tunefa ships is better"
    assert found.before is not None and found.after is not None and found.after > found.before


def test_two_workloads_are_too_few(fits: list[set[int]]) -> None:
    some = rows(512, 1024)
    found = lesson.learn(some)
    assert found.before is None and found.model is None and not fits
    assert found.why_not == "at least 3 new workloads are needed" and lesson.fits(some) == 0


def test_many_workloads_are_held_out_together(fits: list[set[int]]) -> None:
    some = rows(*range(256, 256 + 20))
    lesson.learn(some)
    assert len(fits) == lesson.fits(some) == lesson.FOLDS + 1
    assert all(17 <= len(each) <= 18 for each in fits[:-1])


def test_what_tunefa_has_learned_from_is_no_test_of_it(fits: list[set[int]]) -> None:
    """The workload is learned from in each fit, and no error is that on it."""
    found = lesson.learn(rows(512, 1024, KNOWN))
    assert (found.workloads, found.new_workloads) == (3, 2) and not fits
    assert found.why_not == "at least 3 new workloads are needed"
    found = lesson.learn(rows(512, 1024, 2048, 4096, KNOWN))
    assert (found.workloads, found.new_workloads) == (5, 4)
    assert len(fits) == 5 and all(KNOWN in each for each in fits)
    assert found.after == pytest.approx(math.log(1.001))
