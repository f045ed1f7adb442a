"""The chip of this machine."""

from __future__ import annotations

import pytest

from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.errors import TunefaError
from tunefa.experiments import here
from tunefa.spec.arch_catalog import npu
from tunefa.spec.target import Target


def test_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SeenDevice("NVIDIA H200", (9, 0), 132, 141 * 10**9)
    seen = [h200, SeenDevice("NVIDIA A10", (8, 6), 72, 24 * 10**9)]
    monkeypatch.setattr(driver, "devices", lambda: seen)
    found = here.target()
    assert (found.arch.name, found.device.name) == ("sm90", "NVIDIA H200")


def test_an_npu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    b3 = npu(Target.named("ascend910b3").arch)
    monkeypatch.setattr(driver, "devices", lambda: [])
    monkeypatch.setattr(here, "available_npu", b3.device)
    assert here.target().arch.name == "ascend910b3"


def test_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "devices", lambda: [])
    monkeypatch.setattr(here, "available_npu", lambda: None)
    with pytest.raises(TunefaError, match="has no GPU: name a chip"):
        here.target()
