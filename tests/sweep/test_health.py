"""tunefa/sweep/health.py: a GPU that throttles or fails is put aside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_objective import KERNEL, request
from tests.support.sample_records import measured
from tunefa.compile.workers import Workers
from tunefa.search.request import FinishedTrial, Result
from tunefa.spec.trial import Outcome, Trial
from tunefa.sweep import health


def result(*outcomes: Outcome, **changes: Any) -> Result:
    trials = [FinishedTrial(KERNEL.name, Trial({"A": n}, o)) for n, o in enumerate(outcomes)]
    made = Result(request(), None, tuple(trials), {}, 1.0, Path("journal"), None, False)
    return replace(made, **changes)


def broken() -> None:
    raise RuntimeError("CUDA error: the GPU has fallen off the bus")


def test_a_slowdown_during_the_race_puts_it_aside() -> None:
    for said, expected in {
        "thermal slowdown (hardware), 1 other process(es) on the device": "thermal slowdown",
        "power brake": "power brake",
    }.items():
        record = measured(certificate={"device": {"disturbance": said}})
        with Workers(1) as bench:
            why = health.why_aside(result("ok", record=record), bench)
        assert why is not None and expected in why and "other process" not in why


@pytest.mark.parametrize(
    "certificate",
    [None, {}, {"device": {"watched": False}}, {"device": {"disturbance": None}},
     {"device": {"disturbance": "1 other process(es) on the device", "power_capped": True}}],
)  # fmt: skip
def test_nothing_else_in_a_certificate_does(certificate: dict[str, Any] | None) -> None:
    with Workers(1) as bench:
        found = result("ok", "crashed", record=measured(certificate=certificate))
        assert health.why_aside(found, bench) is None


def test_where_nothing_ran_a_new_process_says_whether_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Workers(1) as bench:
        monkeypatch.setattr(health, "probe", broken)
        why = health.why_aside(result("crashed", "timeout"), bench)
        assert why is not None and "fallen off the bus" in why
        monkeypatch.setattr(health, "probe", float)  # it computes
        assert health.why_aside(result("crashed"), bench) is None


def test_configs_that_do_not_compile_say_nothing_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "probe", broken)
    with Workers(1) as bench:
        assert health.why_aside(result("compile_failed", "wrong", "refused"), bench) is None


def test_the_probe_needs_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        health.probe()
    else:
        with pytest.raises((AssertionError, RuntimeError)):
            health.probe()
