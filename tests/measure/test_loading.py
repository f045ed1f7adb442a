"""tunefa/measure/loading.py: what the bench's process loads before it needs it."""

from __future__ import annotations

import sys
from typing import Any

from tunefa.compile.workers import Workers
from tunefa.measure import loading


def is_loaded(module: str) -> bool:
    return module in sys.modules


def test_the_first_config_does_not_wait_for_what_races_need() -> None:
    order: list[Any] = []

    class Bench:
        def submit(self, task: Any, arguments: Any, limit_s: float, rank: int = 0) -> None:
            order.append((task.__name__, rank))

    bench: Any = Bench()
    loading.warm_up(bench)
    assert order == [("load_device", 0), ("load_statistics", 1)]


def test_a_process_loads_pytorch_and_the_bench_then_the_statistics() -> None:
    with Workers(1) as process:
        loading.warm_up(process, "tunefa.measure.bench")
        for module in ("torch", "tunefa.measure.bench", "scipy.stats"):
            assert process.submit(is_loaded, (module,), 60.0, 1).result(), module
