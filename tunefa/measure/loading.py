"""Loads PyTorch and the device into the bench's process before it needs them.

This module imports next to nothing, so that a process may start another one that loads them, before
it loads its own modules.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading

from tunefa.compile.workers import Workers

_LIMIT_S = 60.0


def warm_up(process: Workers, *modules: str) -> None:
    """Lets a process load what its first config needs, which takes seconds, with these modules."""
    process.submit(load_device, modules, _LIMIT_S)


def load_device(*modules: str) -> None:
    """Loads PyTorch and some modules, while another thread makes the device's context."""
    from tunefa.compile.launch import driver

    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as PyTorch does before its first call
    making = threading.Thread(target=driver.make_context, daemon=True)
    making.start()
    with contextlib.suppress(Exception):  # where PyTorch fails, the first config says why
        importlib.import_module("torch")
    for each in modules:
        importlib.import_module(each)
    making.join()
    with contextlib.suppress(Exception):  # and where the device does
        importlib.import_module("torch").cuda.synchronize()
