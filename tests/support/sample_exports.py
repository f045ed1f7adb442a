"""Records that exports are tried on, and what their Python says."""

from __future__ import annotations

from typing import Any

from tests.support.sample_records import CONFIG, measured, predicted

FAST = measured("fwd_q4096")

SLOW = measured("fwd_q4096", median_us=999.0, config={**CONFIG, "BLOCK_M": 64, "maxnreg": 168})

GUESS = predicted("fwd_q8192", config={**CONFIG, "num_stages": 2})

OF_SM80 = predicted("fwd_q8192", arch="sm80", config={**CONFIG, "num_stages": 4})

CUDA = measured("fwd_q4096", kernel="attention_fwd_cuda", config={"TILE": 64}, median_us=1.0)
Q4096, Q8192 = str(FAST.workload), str(GUESS.workload)


def evaluate(source: str) -> dict[str, Any]:
    """The names that a module with this source defines."""
    scope: dict[str, Any] = {}
    exec(compile(source, "exported", "exec"), scope)
    return scope
