"""Loads PyTorch, the device and statistics into the bench's process before it needs them.

This module imports next to nothing, so that a process may start another one that loads them, before
it loads its own modules.
"""

from __future__ import annotations

import contextlib
import importlib

from tunefa.compile.workers import Workers

_LIMIT_S = 60.0


def warm_up(process: Workers, *modules: str) -> None:
    """Lets a process load what its first config needs, which takes seconds, with these modules;
    then, while it has nothing else to do, what its first race needs."""
    process.submit(load_device, modules, _LIMIT_S)
    process.submit(load_statistics, (), _LIMIT_S, 1)


def load_device(*modules: str) -> None:
    """Loads PyTorch, the device and some modules."""
    with contextlib.suppress(Exception):  # where the device fails, the first config says why
        import torch

        torch.cuda.synchronize()
    for each in modules:
        importlib.import_module(each)


def load_statistics() -> None:
    """Loads scipy.stats, for the intervals of a race, which takes a second."""
    importlib.import_module("scipy.stats")
