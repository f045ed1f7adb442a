"""Switches tunefa on while PyTorch is imported, if an environment variable says so: TUNEFA_ACTIVATE
for `activate`, TUNEFA_TRACE, which `tunefa trace` sets, for a trace.

PyTorch calls `at_import` at the end of `import torch`, as an entry point of the group
`torch.backends`, unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0. Nothing here may make `import torch`
fail: whatever goes wrong is one warning.
"""

from __future__ import annotations

import functools
import os

ACTIVATE = "TUNEFA_ACTIVATE"
TRACE = "TUNEFA_TRACE"
"""The variable with the folder in which each process of a traced program writes."""


def at_import() -> None:
    """Does what the environment variables ask for. It never raises."""
    for variable in (ACTIVATE, TRACE):
        asked = os.environ.get(variable, "")
        if asked not in ("", "0"):
            _begin(variable, asked)


@functools.cache  # PyTorch calls twice where tunefa is installed twice
def _begin(variable: str, asked: str) -> None:
    """Begins what a variable asks for; if that fails, warns."""
    try:
        _activate(asked) if variable == ACTIVATE else _trace(asked)
    except Exception as error:  # PyTorch turns it into a failure of `import torch`
        import warnings

        what = "tunefa is not active" if variable == ACTIVATE else "nothing is traced"
        warnings.warn(f"{variable}={asked}: {what}: {error}", stacklevel=3)


def _activate(asked: str) -> None:
    from tunefa.errors import TunefaError

    if asked != "1":
        raise TunefaError(f"unknown value {asked!r}: give 1 to activate it, 0 or nothing not to")
    from tunefa.integrations.sdpa import activate

    activate()


def _trace(folder: str) -> None:
    from pathlib import Path

    from tunefa.integrations.tracing import trace_process

    trace_process(Path(folder))
