"""benchmarks/trial_cost.py on a device that is a fake."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from benchmarks import trial_cost
from tests.support.fake_device import Device
from tests.support.predicted_case import CASE, KERNEL, TARGET, ok
from tunefa.measure.bench import Bench
from tunefa.spec import kernel as kernels


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: TARGET.device.name)


def test_the_check_alone_takes_no_samples(device: Device, no_device: None) -> None:
    trials = [ok(16, 1.0), ok(32, 1.0)]
    assert len(trial_cost.judged_ms(trial_cost.CheckOnly(CASE, "eager"), trials)) == 2
    launched = len(device.launched)
    trial_cost.judged_ms(Bench(CASE, "eager"), trials)
    assert len(device.launched) - launched > launched


def test_a_config_that_is_not_right_ends_it(device: Device, no_device: None) -> None:
    device.faults[16] = "wrong"
    with pytest.raises(SystemExit, match="wrong: the output of row"):
        trial_cost.judged_ms(Bench(CASE, "eager"), [ok(16, 1.0)])


def test_a_line_for_each_kernel(
    device: Device, no_device: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(kernels, "serving", lambda *_: [KERNEL])
    monkeypatch.setattr(trial_cost, "compiled", lambda case, count: [ok(16, 1.0)] * count)
    monkeypatch.setattr(sys, "argv", ["trial_cost", "--configs", "3", str(CASE.workload)])
    trial_cost.main()
    (line,) = capsys.readouterr().out.splitlines()
    row = json.loads(line)
    assert (row["kernel"], row["trials"]) == (KERNEL.name, 3)
    assert row["check_median_ms"] > 0 and row["trial_mean_ms"] > 0
