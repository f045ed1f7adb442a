"""Records that were made with the kernels and compilers of this machine, or with others."""

from __future__ import annotations

from typing import Any

from tests.support.sample_records import CONFIG, measured
from tunefa.compile import provenance
from tunefa.spec import kernel as kernels
from tunefa.store.record import Record

OURS = "attention_fwd_triton"
CUDA = "attention_fwd_cuda_sm90"


def made_here(workload: str = "fwd_q4096", versions: Any = (), **changes: Any) -> Record:
    """A measured record of one of tunefa's kernels, whose rules allow its config; `versions`
    replace those that are installed."""
    config = {k: v for k, v in CONFIG.items() if k != "ORDER"}
    config |= {"maxnreg": 128, "L2_SECTION_HEADS": 1}
    now = provenance.of(kernels.load(changes.get("kernel", OURS)))
    # One date: which of two records is newer must not depend on the second they are made in.
    made = {**now, "date": "2026-02-01T00:00:00+00:00", **dict(versions)}
    return measured(workload, **{"config": config, "provenance": made, **changes})
