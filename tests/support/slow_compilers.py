"""Measured sweeps without a GPU: real searches, processes and pools, but compilers that take their
time, and a bench that does nothing for as long as a GPU would."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support import slow_compiling
from tests.support.slow_compiling import QUICK, SLOW
from tunefa.compile import pool
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.measure import loading, measured
from tunefa.measure.bench import KernelRaceResult
from tunefa.measure.objective import Raced
from tunefa.spec.trial import Config, Trial, identity
from tunefa.spec.workload import Workload
from tunefa.sweep import allocate, clock
from tunefa.sweep.allocate import Amounts
from tunefa.sweep.cores import Share
from tunefa.sweep.plan import Plan

JUDGE_S, RACE_S = 0.1, 0.6
PROCESSES = 6
AMOUNTS = Amounts(1.0, 3.0, first=0.5)
"""The seconds of a slice, as much shorter as everything else here."""
WEIGHTS = {
    "bwd_q1024_h8_kv2_d128_causal": 8.0,
    "q1024_h8_kv2_d64": 4.0,
    "q512_h8_kv2_d64": 3.0,
    "q2048_h8_kv2_d64": 2.0,
    "q256_h8_kv2_d64": 1.0,
}
Patch = Callable[[Any, str, Any], None]
"""`setattr`, or that of pytest."""


def plan(**changes: Any) -> Plan:
    """Five workloads, measured on the GPU that is seen: the heaviest compiles slowly."""
    weights = {Workload.parse(text): weight for text, weight in WEIGHTS.items()}
    asked: dict[str, Any] = {
        "weights": weights, "targets": (), "kernels": (QUICK, SLOW), "strategy": "random",
    }  # fmt: skip
    return Plan(**{**asked, **changes})


def share() -> Share:
    """Compilers that have cores of their own."""
    return Share(compilers=frozenset(range(os.cpu_count() or 1)), processes=PROCESSES)


def install(patch: Patch) -> None:
    """Puts the slow compilers and the bench in the place of the real ones."""
    patch(pool, "_compile_once", slow_compiling.compiled_slowly)
    patch(pool, "_import", slow_compiling.import_nothing)
    patch(measured, "run_in_process", run)
    patch(loading, "load_device", load_device)
    patch(driver, "devices", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 2**37)])
    patch(clock, "SECONDS", {**allocate.SECONDS, "measured": AMOUNTS})


def compilations(home: Path) -> list[str]:
    """Returns the configs that were compiled, in their sequence."""
    path = home / "compiled"
    return path.read_text().splitlines() if path.exists() else []


def load_device(*modules: str) -> None:
    """Runs in the bench's process."""


def run(task: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """Runs in the bench's process, in place of its methods."""
    methods: dict[str, Any] = {
        "judge": _judge, "retime": _retime, "race": _race, "race_kernels": _race_kernels,
    }  # fmt: skip
    return methods[method](*arguments)


def _judge(trial: Trial, best_us: float) -> Trial:
    time.sleep(JUDGE_S)
    return replace(trial, error=1e-4, samples_us=(_us(trial.config),) * 5)


def _retime(trial: Trial) -> Trial:
    time.sleep(JUDGE_S)
    return replace(trial, samples_us=trial.samples_us + (_us(trial.config),) * 5)


def _race(trials: list[Trial], default: Config | None, until: float, least_us: float) -> Raced:
    time.sleep(RACE_S)
    raced = [replace(each, error=1e-4, samples_us=(_us(each.config),) * 20) for each in trials]
    best = min(raced, key=lambda each: each.samples_us[0], default=None)
    return Raced(raced, best, {"noise_floor": 0.001} if best else None)


def _race_kernels(own: Trial, rivals: list[tuple[str, Trial]], *_: float) -> KernelRaceResult:
    time.sleep(RACE_S)
    return KernelRaceResult(rivals[0][0], {"noise_floor": 0.001})


def _us(config: Config) -> float:
    """100 to 120 us, by chance."""
    digest = hashlib.sha256(repr(identity(config)).encode()).digest()
    return 100.0 + 20.0 * digest[0] / 255.0
