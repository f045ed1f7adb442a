"""Where the source tree is that the tests run on."""

from __future__ import annotations

from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
"""The folder with pyproject.toml, tunefa/, kernels/ and tests/."""
