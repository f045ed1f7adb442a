"""Compiled kernels on disk, by everything that the compiler saw.

An entry is one file, put in place by a rename, so that any number of processes may write the same;
a damaged one counts as missing.
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
    """The name of the entry for plain data that the compiler saw."""
    text = json.dumps([_FORMAT, *seen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load(name: str) -> Cubin | None:
    """The entry of that name; None where there is no whole one."""
    try:
        head, _, image = _path(name).read_bytes().partition(b"\n")
        entry = json.loads(head)
        if entry["sha256"] != hashlib.sha256(image).hexdigest():
            return None
        return Cubin(image, Resources(**entry["resources"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def save(name: str, cubin: Cubin) -> None:
    """Keeps an entry. Where that is not possible, the kernel is compiled again next time."""
    digest = hashlib.sha256(cubin.image).hexdigest()
    head = json.dumps({"sha256": digest, "resources": asdict(cubin.resources)})
    assets.keep(_path(name), head.encode() + b"\n" + cubin.image)


def _path(name: str) -> Path:
    return assets.cache() / "cubins" / name[:2] / f"{name}.cubin"
