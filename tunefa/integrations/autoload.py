"""Switches tunefa on while PyTorch is imported, if the environment variable TUNEFA_ACTIVATE is 1.

PyTorch calls `at_import` at the end of `import torch`, as an entry point of the group
`torch.backends`, unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0. Nothing here may make `import torch`
fail: whatever goes wrong is one warning.
"""

from __future__ import annotations

import os

VARIABLE = "TUNEFA_ACTIVATE"


def at_import() -> None:
    """Calls `activate` if the environment variable asks for it. It never raises."""
    asked = os.environ.get(VARIABLE, "")
    if asked in ("", "0"):
        return
    try:
        _activate(asked)
    except Exception as error:  # PyTorch turns it into a failure of `import torch`
        import warnings

        warnings.warn(f"{VARIABLE}={asked}: tunefa is not active: {error}", stacklevel=2)


def _activate(asked: str) -> None:
    from tunefa.errors import TunefaError

    if asked != "1":
        raise TunefaError(f"unknown value {asked!r}: give 1 to activate it, 0 or nothing not to")
    from tunefa.integrations.sdpa import activate

    activate()
