"""tunefa beside peers in one contest, as the experiments need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunefa.experiments.document import Row
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

OURS = "tunefa"
TITLES = {
    OURS: "tunefa",
    "sdpa": "SDPA",
    "operators": "PyTorch operators",
    "fa2": "FlashAttention-2",
}
"""The names of contestants in tables and plots."""


def timed(workload: Workload, peers: Sequence[str], settings: Settings) -> Row:
    """Times tunefa and peers on the same tensors, in interleaved rounds.

    The row has `workload`; for each contestant that ran `<name>_us`, its quartiles
    `<name>_quartiles_us`, its `<name>_error` and `<name>_worst_row` against fp64, and whether it
    was `<name>_captured` in a CUDA graph; what tunefa `ran`; why others are `left_out`; and the
    `device`'s clocks and power meanwhile.
    """
    from tunefa.experiments import ours
    from tunefa.measure import contest
    from tunefa.measure import peers as known

    makers = {OURS: ours.maker(), **{name: known.load(name).make for name in peers}}
    found = contest.run(workload, makers, settings)
    row: Row = {"workload": str(workload), "left_out": dict(found.left_out)}
    for name, score in found.scores.items():
        row[f"{name}_us"] = score.median_us
        row[f"{name}_quartiles_us"] = list(score.spread)
        row[f"{name}_error"] = score.error
        row[f"{name}_worst_row"] = score.worst_row
        row[f"{name}_captured"] = score.captured
    return {**row, "ran": ours.ran() if OURS in found.scores else None, "device": found.device}


def left_out(rows: Sequence[Row]) -> list[str]:
    """Returns which contestants are left out of which rows, and why, as sentences."""
    missing: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, why in row.get("left_out", {}).items():
            missing.setdefault((name, why), []).append(row["workload"])
    return [
        f"Without {TITLES.get(name, name)}: {', '.join(where)} ({why})."
        for (name, why), where in missing.items()
    ]


def defaults(rows: Sequence[Row]) -> list[str]:
    """Returns a sentence about the workloads for which tunefa ran a default config; none if there
    are none."""
    ran = [
        row["workload"]
        for row in rows
        if str((row.get("ran") or {}).get("why", "")).startswith("default")
    ]
    if not ran:
        return []
    return [f"tunefa ran a kernel's default config for {', '.join(ran)}, as nothing was tuned."]


def failed(rows: Sequence[Row]) -> list[str]:
    """Returns the points that failed, and why, as sentences."""
    return [f"{row['workload']} failed: {row['error']}." for row in rows if "error" in row]
