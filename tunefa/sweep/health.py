"""Whether a GPU can go on in a sweep."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import TimeoutError
from typing import Any

from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.errors import TunefaError
from tunefa.search.request import Result

_PROBE_LIMIT_S = 30.0
_LOST = ("crashed", "timeout")


def why_aside(result: Result, bench: Workers) -> str | None:
    """Returns why the GPU that made a result must be put aside; None if it may go on.

    It must if its clocks were lowered to save it while it raced, or if nothing ran on it and a new
    process cannot use it either. `bench` is the worker whose processes use the GPU.
    """
    if (slow := _slowed(result)) is not None:
        return f"its clocks were lowered during a race: {slow}"
    if not must_probe(result):
        return None
    bench.renew()
    try:
        bench.submit(probe, (), _PROBE_LIMIT_S).result()
    except (TimeoutError, ProcessLost, TaskRaised, TunefaError) as error:
        return f"a new process cannot use it: {str(error) or 'no answer'}"
    return None


def must_probe(result: Result) -> bool:
    """Returns whether nothing ran on the GPU, so that a new process must look at it."""
    lost = any(each.trial.outcome in _LOST for each in result.finished)
    return result.record is None and lost


def _slowed(result: Result) -> str | None:
    """The slowdown that a record's certificate names; power caps and other processes are none."""
    certificate: Mapping[str, Any] = (result.record and result.record.certificate) or {}
    with contextlib.suppress(AttributeError):  # a device that was not watched
        said = certificate.get("device", {}).get("disturbance") or ""
        parts = [part for part in said.split(", ") if "slowdown" in part or "brake" in part]
        return ", ".join(parts) or None
    return None


def probe() -> None:
    """Runs in a new process: computes on the GPU. Raises what PyTorch raises."""
    import torch

    assert float(torch.ones(1024, device="cuda").sum()) == 1024.0
