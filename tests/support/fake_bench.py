"""The acts of a bench in its own process, by what a config says: real processes, no device."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import replace
from typing import Any

from tests.support.sample_space import MODEL
from tunefa.measure.measured import LostProcess
from tunefa.measure.objective import Raced

SPACE = f"""\
schema: 2
kernel: NAME
op: fwd
language: triton
parameters:
  FAULT:
    values: [none, error, exit, segfault, hang]
    doc: what becomes of the process that compiles it
  DEVICE:
    values: [fine, killed, segfault, hang, poisoned, wrong]
    doc: what becomes of the process that runs it
rules:
  one fault is enough: FAULT == "none" or DEVICE == "fine"
defaults:
  - config: {{FAULT: none, DEVICE: fine}}
{MODEL}"""
"""The space of the kernel whose source is `tests.support.own_kernels.FAULTY_SOURCE`."""


def load_nothing(*modules: str) -> None:
    """In place of `tunefa.measure.loading.load_device`: no config here needs PyTorch."""


def run(task: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """In place of `tunefa.measure.measured.run_in_process`."""
    if method == "race":
        return Raced(arguments[0], min(arguments[0], key=lambda trial: trial.median_us))
    trial, _ = arguments
    fault = trial.config["DEVICE"]
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "hang":
        time.sleep(600)
    if fault == "poisoned":
        return LostProcess("crashed", "RuntimeError: an illegal memory access was encountered")
    if fault == "wrong":
        return replace(trial, outcome="wrong", reason="error 5.0e-01")
    return replace(trial, samples_us=(10.0,), error=1e-3)
