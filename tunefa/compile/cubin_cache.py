"""The cache of compiled CUDA kernels on disk. Keys are hashes of all inputs of the compiler.

An entry is one file, which is renamed into place, so that several processes may write the same
entry. A damaged entry counts as missing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunefa import assets
from tunefa.compile.nvrtc import Cubin
from tunefa.spec.trial import Resources

_FORMAT = 1


def key(*seen: Any) -> str:
    """Returns the key for the compiler's inputs, which are plain data."""
    text = json.dumps([_FORMAT, *seen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load(name: str) -> Cubin | None:
    """Returns the entry with that key; None if it is missing or damaged."""
    try:
        head, _, image = _path(name).read_bytes().partition(b"\n")
        entry = json.loads(head)
        if entry["sha256"] != hashlib.sha256(image).hexdigest():
            return None
        return Cubin(image, Resources(**entry["resources"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def save(name: str, cubin: Cubin) -> None:
    """Writes an entry. If that fails, the kernel is compiled again next time."""
    digest = hashlib.sha256(cubin.image).hexdigest()
    head = json.dumps({"sha256": digest, "resources": asdict(cubin.resources)})
    assets.keep(_path(name), head.encode() + b"\n" + cubin.image)


def _path(name: str) -> Path:
    return assets.cache() / "cubins" / name[:2] / f"{name}.cubin"
