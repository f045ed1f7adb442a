"""The cache of compiler reports on disk. Keys are those of `back_end.key`.

An entry is one file, which is renamed into place, so that several processes may write the same
entry. A damaged entry counts as missing.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tunefa import assets
from tunefa.compile.ascend.compiler_report import CompilerReport, Memory

_FORMAT = 2


def load(key: str) -> CompilerReport | None:
    """Returns the entry with that key; None if it is missing or damaged."""
    try:
        data = json.loads(_path(key).read_text(encoding="utf-8"))
        memories = {name: Memory(**each) for name, each in data.pop("memories").items()}
        return CompilerReport(**data, memories=memories)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def save(key: str, report: CompilerReport) -> None:
    """Writes an entry. If that fails, the compiler runs again next time."""
    assets.keep(_path(key), json.dumps(asdict(report)).encode())


def _path(key: str) -> Path:
    return assets.cache() / f"ascend-{_FORMAT}" / key[:2] / f"{key}.json"
