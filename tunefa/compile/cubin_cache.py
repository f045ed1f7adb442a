"""The cache of compiled CUDA kernels on disk. Keys are hashes of all inputs of the compiler.

An entry is one file, which is renamed into place, so that several processes may write the same
entry. A damaged entry counts as missing: the kernel is compiled again, and the entry replaced.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunefa import assets
from tunefa.compile.nvrtc import Cubin
from tunefa.spec import regular_file
from tunefa.store import trial_data, trust

_FORMAT = 2


def key(*seen: Any) -> str:
    """Returns the key for the compiler's inputs, which are plain data."""
    text = json.dumps([_FORMAT, *seen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load(name: str) -> Cubin | None:
    """Returns the entry with that key; None if it is missing, damaged or another user's."""
    path = _path(name)
    try:
        if trust.why_not(path, assets.cache()):
            return None
        digest, _, entry = regular_file.content(path).partition(b"\n")
        if digest != _digest(name, entry):
            return None
        head, _, image = entry.partition(b"\n")
        return Cubin(image, trial_data.resources(json.loads(head)))
    except (OSError, ValueError, RecursionError):
        return None


def save(name: str, cubin: Cubin) -> None:
    """Writes an entry. If that fails, the kernel is compiled again next time."""
    entry = json.dumps(asdict(cubin.resources)).encode() + b"\n" + cubin.image
    assets.keep(_path(name), _digest(name, entry) + b"\n" + entry)


def _digest(name: str, entry: bytes) -> bytes:
    """Returns the checksum of an entry and its key, so that a renamed entry is damaged too."""
    return hashlib.sha256(name.encode() + entry).hexdigest().encode()


def _path(name: str) -> Path:
    return assets.cache() / "cubins" / name[:2] / f"{name}.cubin"
