"""Journals for tests, as a search leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunefa.journal import Journal
from tunefa.trial import Trial
from tunefa.workload import Workload


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
