"""The output of the compiler for NPUs, as it was recorded."""

from __future__ import annotations

import json
from pathlib import Path

from tunefa.compile.ascend.compiler_report import Output

RECORDINGS = Path(__file__).parents[1] / "compile" / "ascend" / "recordings"


def recorded(name: str) -> Output:
    """One run, as it was."""
    data = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    return Output(data["returncode"], data["stderr"], tuple(data["plans"]))
