"""tunefa/measure/loading.py: what the bench's process loads before it needs it."""

from __future__ import annotations

import sys

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
