"""Journals for tests, as a search leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload
from tunefa.store.journal import Journal

OK = Trial(
    {"BLOCK_M": 64, "USE_TMA": 1},
    "ok",
    resources=Resources(smem_bytes=49152, registers=168, spill_bytes=0, stack_bytes=None),
    predicted_us=12.5,
    samples_us=(12.1, 12.2, 12.4),
    error=0.0011,
    compile_s=1.25,
)
FAILED = Trial({"BLOCK_M": 16, "USE_TMA": 0}, "compile_failed", "ptxas: no « registers »\n")


def bare(*trials: Trial) -> Path:
    """The journal of a search that says no more than its seed."""
    with Journal("sm90-fwd", {"seed": 0}) as journal:
        for trial in trials:
            journal.append("a_kernel", trial)
    return journal.path


def written(stamp: str, *trials: Trial, kernel: str = "a_kernel", **header: Any) -> Path:
    """The journal of a search that began at `stamp` (20260131T120000, UTC)."""
    date = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:]}+00:00"
    said = {
        "workload": str(Workload.parse("fwd_q4096")),
        "arch": "sm90",
        "device": "NVIDIA H200",
        "objective": "measured",
        "provenance": {kernel: {"date": date, "source_hash": "0123abcd"}},
    }
    with Journal("sm90", {**said, **header}) as journal:
        for trial in trials:
            journal.append(kernel, trial)
    return journal.path.rename(journal.path.with_name(stamp + journal.path.name[len(stamp) :]))
