"""A folder that Hugging Face's `kernels` takes for flash-attn of its hub, and that is tunefa.

Transformers and Diffusers fetch flash-attn from the hub where it is not installed. The environment
variable LOCAL_KERNELS names a folder to take instead, so a program that says
attn_implementation="flash_attention_2", or set_attention_backend("flash_hub"), runs tunefa with no
line changed.
"""

from __future__ import annotations

import json
from pathlib import Path

from tunefa.errors import TunefaError

REPOSITORY = "kernels-community/flash-attn2"
"""The hub's name of flash-attn 2."""
VARIABLE = "LOCAL_KERNELS"
BACKENDS = ("cuda", "cpu")
"""The backends that PyTorch may be built for; on the CPU tunefa computes by PyTorch's operators."""
SOURCE = '''"""flash-attn 2's functions by tunefa. `tunefa integrate transformers` wrote this."""

from tunefa.integrations.compat import flash_attn_interface
from tunefa.integrations.compat.flash_attn2 import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
'''


def write(folder: Path) -> str:
    """Writes the folder, and returns the assignment of the environment variable for it.

    A folder that this wrote before is written again. Raises TunefaError for one that holds anything
    else, for a path that the variable cannot hold, and if it cannot be written.
    """
    folder = folder.expanduser().absolute()
    for character in (":", "="):
        if character in str(folder):
            raise TunefaError(
                f"{folder} has a {character!r}, which {VARIABLE} takes for a separator: name "
                f"another folder"
            )
    try:
        if folder.is_dir() and any(folder.iterdir()) and not _is_own(folder):
            raise TunefaError(f"{folder} is not empty: name a new folder")
        for backend in BACKENDS:
            place = folder / "build" / f"torch-{backend}"
            place.mkdir(parents=True, exist_ok=True)
            (place / "__init__.py").write_text(SOURCE, encoding="utf-8")
            (place / "metadata.json").write_text(_metadata(backend), encoding="utf-8")
    except OSError as error:
        raise TunefaError(f"{folder} cannot be written: {error.strerror}") from error
    return f"{VARIABLE}={REPOSITORY}={folder}"


def _is_own(folder: Path) -> bool:
    found = folder / "build" / f"torch-{BACKENDS[0]}" / "__init__.py"
    own, _, _ = SOURCE.partition("\n")  # older versions of tunefa wrote other lines below it
    return found.is_file() and found.read_text(encoding="utf-8").startswith(own)


def _metadata(backend: str) -> str:
    """The fields that `kernels` 0.16 and 0.17 need."""
    data = {
        "id": f"tunefa_flash_attn2_{backend}",
        "name": "flash-attn2",
        "version": 1,
        "license": "",
        "python-depends": [],
        "backend": {"type": backend},
    }
    return json.dumps(data, indent=2) + "\n"
