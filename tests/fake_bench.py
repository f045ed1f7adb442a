"""What a bench does in its own process, by what a config says: for real processes, no device."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import replace
from typing import Any

from tunefa.evaluate import Raced
from tunefa.measured import Lost

SPACE = """\
schema: 1
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
  BLOCK_M: {values: [64], doc: for the model}
  BLOCK_N: {values: [64], doc: for the model}
  num_warps: {values: [1], doc: for the model}
  num_stages: {values: [1], doc: for the model}
  LOADS: {values: [pointer], doc: for the model}
  SECTION_HEADS: {values: [1], doc: for the model}
  PACK_GQA: {values: [0], doc: for the model}
rules:
  one fault is enough: FAULT == "none" or DEVICE == "fine"
defaults:
  - config: {FAULT: none, DEVICE: fine, BLOCK_M: 64, BLOCK_N: 64, num_warps: 1, num_stages: 1,
             LOADS: pointer, SECTION_HEADS: 1, PACK_GQA: 0}
"""
"""Of a kernel whose source is `tests.own_kernels.FAULTY_SOURCE`."""


def run(task: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """In place of `tunefa.measured.run`."""
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
        return Lost("crashed", "RuntimeError: an illegal memory access was encountered")
    if fault == "wrong":
        return replace(trial, outcome="wrong", reason="error 5.0e-01")
    return replace(trial, samples_us=(10.0,), error=1e-3)
