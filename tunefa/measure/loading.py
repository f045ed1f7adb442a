"""Loads PyTorch and the device into the bench's process before it needs them.

This module imports next to nothing, so that a process may start another one that loads them, before
it loads its own modules.
"""

from __future__ import annotations

import contextlib
import importlib

from tunefa.compile.workers import Workers

_LIMIT_S = 60.0


def warm_up(process: Workers, *modules: str) -> None:
    """Lets a process load what its first config needs, which takes seconds, with these modules."""
    process.submit(load_device, modules, _LIMIT_S)


def load_device(*modules: str) -> None:
    """Loads PyTorch, the device and some modules."""
    with contextlib.suppress(Exception):  # where the device fails, the first config says why
        import torch

        torch.cuda.synchronize()
    for each in modules:
        importlib.import_module(each)
