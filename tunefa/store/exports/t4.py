"""Export of all trials of a journal to a T4 file, the results format of FAIR auto-tuning.

Source: the schema in kernel_tuner 1.5 (`schema/T4/1.0.0`), and the files of AutoTuningAssociation's
benchmark hub, which `autotuning_methodology` reads. Times are in ms.
"""

from __future__ import annotations

import json
from typing import Any

from tunefa.spec.trial import Trial
from tunefa.store.exports.kernel_tuner import comment, timed
from tunefa.store.landscape import Landscape

SUFFIXES = (".t4.json",)
DESCRIPTION = "all trials of one journal as a T4 file, for AutoTuningAssociation's tools"

_INVALIDITY = {
    "ok": "correct",
    "refused": "constraints",
    "compile_failed": "compile",
    "timeout": "timeout",
    "crashed": "runtime",
    "wrong": "correctness",
    "unstable": "correctness",
}


def dump_trials(landscape: Landscape, kernel: str) -> str:
    """Returns the T4 file of a kernel's trials."""
    made = landscape.provenance[kernel]
    head = {
        "comment": comment(landscape),
        "schema_version": "1.0.0",
        "metadata": {
            "timeunit": "milliseconds",
            "kernel": kernel,
            "workload": str(landscape.workload),
            "device": landscape.target.device.name,
            "objective": "measured" if landscape.measured else "predicted",
            **made,
        },
    }
    date = str(made.get("date", ""))
    results = [
        json.dumps(_result(trial, time_us, date)) for trial, time_us in timed(landscape, kernel)
    ]
    lines = [f"{json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    return "\n".join(["{", *lines, '"results": [', ",\n".join(results) + "]", "}"]) + "\n"


def _result(trial: Trial, time_us: float | None, date: str) -> dict[str, Any]:
    invalidity = _INVALIDITY[trial.outcome]
    value = invalidity if time_us is None else time_us / 1000
    return {
        "timestamp": date,
        "configuration": dict(trial.config),
        "times": {
            "compilation": 1000 * (trial.compile_s or 0.0),
            "runtimes": [us / 1000 for us in trial.samples_us],
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": 0.0,
        },
        "invalidity": invalidity,
        "correctness": float(trial.outcome == "ok"),
        "measurements": [{"name": "time", "value": value, "unit": "milliseconds"}],
        "objectives": ["time"],
    }
