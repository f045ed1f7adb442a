"""tunefa/measure/loading.py: what the bench's process loads before it needs it."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tunefa.compile.launch import driver
from tunefa.compile.workers import Workers
from tunefa.measure import loading


def is_loaded(module: str) -> bool:
    return module in sys.modules


def test_a_process_loads_pytorch_and_the_bench() -> None:
    with Workers(1) as process:
        loading.warm_up(process, "tunefa.measure.bench")
        for module in ("torch", "tunefa.measure.bench"):
            assert process.submit(is_loaded, (module,), 60.0).result(), module
        assert not process.submit(is_loaded, ("scipy.stats",), 60.0).result(), "takes a second"


def test_the_context_is_made_while_pytorch_and_the_bench_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    loaded = threading.Event()

    def make_context() -> None:
        assert loaded.wait(10.0), "nothing is loaded before there is a context"
        order.append("context")

    def load(name: str) -> Any:
        order.append(name)
        if name == "tunefa.measure.bench":
            loaded.set()
        return SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: order.append("device")))

    monkeypatch.setattr(driver, "make_context", make_context)
    monkeypatch.setattr(loading, "importlib", SimpleNamespace(import_module=load))
    loading.load_device("tunefa.measure.bench")
    assert order == ["torch", "tunefa.measure.bench", "context", "torch", "device"]


def test_a_device_that_fails_is_left_to_the_first_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "make_context", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    loading.load_device("tunefa.measure.race")
    assert "tunefa.measure.race" in sys.modules
