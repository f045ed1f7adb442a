"""Export of all trials of a journal to a cache file of kernel_tuner, for its simulation mode.

`kernel_tuner.tune_cache(path, strategy="genetic_algorithm")` then searches the space without the
device. The format is that of kernel_tuner 1.5 (`kernel_tuner.util.process_cache`): times are in ms,
the name of an error stands in place of a time, and the last two brackets are on lines of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tunefa.spec.trial import Trial
from tunefa.store.landscape import Landscape

SUFFIXES = (".kernel_tuner.json",)
DESCRIPTION = "all trials of one journal, for kernel_tuner's simulation mode"
COMMENT = "all trials of a search space, written by tunefa"

_ERRORS = {
    "refused": "InvalidConfig",
    "compile_failed": "CompilationFailedConfig",
}
"""By outcome; for all others the config was compiled and failed."""


def dump_trials(landscape: Landscape, kernel: str) -> str:
    """Returns the cache file of a kernel's trials."""
    found = list(timed(landscape, kernel))
    values: dict[str, dict[Any, None]] = {}
    for trial, _ in found:
        for name, value in trial.config.items():
            values.setdefault(name, {})[value] = None
    workload = landscape.workload
    head = {
        "comment": comment(landscape),
        "device_name": landscape.target.device.name,
        "kernel_name": f"{kernel}--{workload}",
        "problem_size": list(problem_size(landscape)),
        "tune_params_keys": list(values),
        "tune_params": {name: sorted(those, key=_sort_key) for name, those in values.items()},
        "objective": "time",
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    date = str(landscape.provenance[kernel].get("date", ""))
    entries = [
        f"{json.dumps(_key(trial, values))}: {json.dumps(_entry(trial, time_us, date))}"
        for trial, time_us in found
    ]
    return "\n".join(["{", *lines, '"cache": {', ",\n".join(entries) + "}", "}"]) + "\n"


def comment(landscape: Landscape) -> str:
    """Returns a sentence on what a file holds, and where its times come from."""
    if landscape.measured:
        return COMMENT
    return f"{COMMENT}; PREDICTED: the times come from a cost model, and nothing was measured"


def timed(landscape: Landscape, kernel: str) -> Iterator[tuple[Trial, float | None]]:
    """Yields the screening of each config, and its time in us, to which a race has added.

    A config that failed, in a race too, has no time, and the trial that says why.
    """
    times = landscape.times_us(kernel)
    for key, last in landscape.last.items():
        if key[0] == kernel:
            time_us = times.get(key[1])
            yield last if time_us is None else landscape.first[key], time_us


def problem_size(landscape: Landscape) -> tuple[int, ...]:
    """Returns (query rows, heads, batch), or the shape of a matrix product."""
    workload = landscape.workload
    names = ("seqlen_q", "heads", "batch") if hasattr(workload, "heads") else ("m", "n", "k")
    return tuple(int(getattr(workload, name)) for name in names)


def _sort_key(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value


def _key(trial: Trial, values: dict[str, Any]) -> str:
    return ",".join(str(trial.config[name]) for name in values)


def _entry(trial: Trial, time_us: float | None, date: str) -> dict[str, Any]:
    runs = [us / 1000 for us in trial.samples_us]
    failed = _ERRORS.get(trial.outcome, "RuntimeFailedConfig")
    return {
        **trial.config,
        "time": failed if time_us is None else time_us / 1000,
        "times": runs,
        "compile_time": 1000 * (trial.compile_s or 0.0),
        "verification_time": 0.0,
        "benchmark_time": sum(runs),
        "strategy_time": 0.0,
        "framework_time": 0.0,
        "timestamp": date,
    }
