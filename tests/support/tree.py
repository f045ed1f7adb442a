"""The source tree that the tests run on: where it is, and the statements of its files."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
"""The folder with pyproject.toml, tunefa/, kernels/ and tests/."""
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(text: str) -> list[ast.AST]:
    """The module, its statements, and those within others. Expressions are left out, as there are
    ten times as many."""
    was_enabled = gc.isenabled()
    gc.disable()  # it would look through what is parsed, again and again
    try:
        found: list[ast.AST] = [ast.parse(text)]
    finally:
        if was_enabled:
            gc.enable()
    for node in found:
        for name in _BLOCKS:
            found += getattr(node, name, ())
    return found
