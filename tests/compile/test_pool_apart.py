"""tunefa/compile/pool.py: compilers that have cores of their own."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from tests.support.processes import Shared
from tunefa.compile.pool import FINISH_S, CompilePool
from tunefa.spec.target import Case

CASE = Case.from_names("attention_fwd_triton", "q512", "sm90")


def test_nobody_waits_for_compilers_on_cores_of_their_own() -> None:
    begun: Future[Any] = Future()
    shared: Any = Shared(count=1, lasting=True, apart=True, submit=lambda *_: begun)
    pool = CompilePool(CASE, processes=shared)
    pending = [pool.submit(CASE.default())]
    begun.set_running_or_notify_cancel()
    start = time.monotonic()
    pool.abandon(pending)
    assert time.monotonic() - start < FINISH_S and not begun.done()
