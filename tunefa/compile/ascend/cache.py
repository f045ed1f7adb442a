"""Verdicts on disk, by everything that they depend on.

An entry is one file, put in place by a rename, so that any number of processes may write the same;
a damaged one counts as missing.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tunefa import assets
from tunefa.compile.ascend.compiler_report import CompilerReport, Memory

_FORMAT = 2


def load(key: str) -> CompilerReport | None:
    """The entry of that key; None where there is no whole one."""
    try:
        data = json.loads(_path(key).read_text(encoding="utf-8"))
        memories = {name: Memory(**each) for name, each in data.pop("memories").items()}
        return CompilerReport(**data, memories=memories)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def save(key: str, report: CompilerReport) -> None:
    """Keeps an entry. Where the folder cannot be written, it is asked for again next time."""
    assets.keep(_path(key), json.dumps(asdict(report)).encode())


def _path(key: str) -> Path:
    return assets.cache() / f"ascend-{_FORMAT}" / key[:2] / f"{key}.json"
