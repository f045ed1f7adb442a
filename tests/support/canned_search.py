"""A search that has happened: what the command line makes of it is tested without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunefa.search import run as search
from tunefa.search.request import FinishedTrial, Progress, Request, Result
from tunefa.spec.space import Feasible
from tunefa.spec.trial import Resources, Trial
from tunefa.store.results import Store

SMALL = ("search", "--arch", "sm90", "--seqlen", "4096")
CONFIG: dict[str, Any] = {
    "BLOCK_M": 128,
    "BLOCK_N": 64,
    "num_warps": 8,
    "num_stages": 2,
    "USE_TMA": 1,
    "maxnreg": 0,
    "L2_SECTION_HEADS": 1,
    "PACK_GQA": 0,
}
Searching = Callable[..., list[Request]]


def trials() -> list[Trial]:
    """Six that are fine, and that the model can tell apart, and three that are not."""
    resources = Resources(98336, 168, 0, 0)
    fine = [
        Trial({**CONFIG, "num_stages": n % 5 + 1, "PACK_GQA": n // 5}, "ok", resources=resources)
        for n in range(6)
    ]
    return [
        *(
            replace(trial, predicted_us=300.0 * 1.5**n, predicted_sd=0.1)
            for n, trial in enumerate(fine)
        ),
        Trial({**CONFIG, "BLOCK_M": 256}, "compile_failed", "error: out of registers"),
        Trial({**CONFIG, "BLOCK_N": 256}, "compile_failed", "error: out of registers"),
        Trial({**CONFIG, "maxnreg": 96}, "timeout", "compiling took over 60 s"),
    ]


def replaced(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., list[Request]]:
    """Replaces the search by one that finds the given things; returns the requests it gets."""

    def prepare(**found: Any) -> list[Request]:
        requests: list[Request] = []

        def canned_search(
            request: Request, store: Store, on_progress: Callable[[Progress], None]
        ) -> Result:
            requests.append(request)
            finished, name = found.get("finished", trials()), "attention_fwd_triton"
            if request.workload.op != "fwd":  # whose configs are others
                kernel, name = request.kernels[0], request.kernels[0].name
                default = request.case(kernel).default()
                finished = [replace(each, config=default) for each in finished[:1]]
            best = finished[0]
            on_progress(Progress("attention_fwd_triton", 3, 1, best, 2.0, 0.25, "search"))
            on_progress(Progress("attention_fwd_triton", 3, 1, best, 3.0, 0.25, "check"))
            return Result(
                request=request,
                record=found.get("record"),
                finished=tuple(FinishedTrial(name, trial) for trial in finished),
                feasible={name: Feasible((CONFIG,), {"a rule": 7, "idle": 0})},
                elapsed_s=12.0,
                journal=folder / "journal.jsonl",
                stored=folder / "stored.yaml" if found.get("record") else None,
                interrupted=found.get("interrupted", False),
            )

        monkeypatch.setattr(search, "search", canned_search)
        return requests

    return prepare
