"""tunefa/measure/predicted.py: which of several configs a busy compiler begins with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_objective import KERNEL, request
from tunefa.compile import pool
from tunefa.compile.pool import Rank
from tunefa.compile.workers import Workers
from tunefa.measure.predicted import Predicted

LIMIT_S = 30.0


def compiled(*_: Any) -> tuple[str, None, float, str]:
    """Runs in the compiler's process."""
    return "ok", None, 0.0, ""


def test_a_config_that_has_its_binary_is_next_at_a_busy_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_compile_once", compiled)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    order: list[int] = []
    case = request().case(KERNEL)
    with Workers(1) as compilers, Predicted(case, compilers=compilers) as objective:
        busy = compilers.submit(Path.read_text, (pipe,), LIMIT_S)  # until something is written
        for number, rank in enumerate((Rank.NOW, Rank.NOW, Rank.COMPILED, Rank.NOW)):
            objective.submit({"A": number}, rank)
            future = objective._pending[-1].future
            future.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
        pipe.write_text("go on")
        assert busy.result(LIMIT_S) == "go on"
        assert all(objective.next(LIMIT_S) for _ in range(4))
        while len(order) < 4:  # callbacks come after the result
            time.sleep(0.01)
    assert order == [2, 0, 1, 3]
