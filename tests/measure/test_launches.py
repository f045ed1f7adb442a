"""tunefa/measure/launches.py: which trials the device cannot tell apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.fake_device import Device
from tests.support.predicted_case import CASE, CONFIG
from tunefa.measure import check, launches
from tunefa.spec.trial import Resources, Trial


def trial(code: str | None) -> Trial:
    return Trial(CONFIG, "ok", resources=Resources(code=code))


def test_a_program_is_its_code_and_its_launch() -> None:
    first: Any = SimpleNamespace(key=((1, 2, 3), "table"))
    second: Any = SimpleNamespace(key=((1, 2, 4), "table"))
    without: Any = SimpleNamespace()
    found = launches.what_runs(trial("ab"), first)
    assert found is not None and found == launches.what_runs(trial("ab"), first)
    assert found not in (
        launches.what_runs(trial("cd"), first),
        launches.what_runs(trial("ab"), second),
    )
    assert (
        launches.what_runs(trial(None), first) is launches.what_runs(trial("ab"), without) is None
    )
    assert launches.what_runs(Trial(CONFIG, "ok"), first) is None


def test_a_launch_starts_on_its_tensors(device: Device) -> None:
    tensors = check.tensors(CASE.workload, "cuda")
    launch = launches.launch(CASE, CONFIG, tensors)
    launch()
    assert device.launched == [CONFIG] and device.prepared == [32**-0.5]
