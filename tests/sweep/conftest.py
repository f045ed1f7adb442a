"""Every test of a sweep has a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TUNEFA_HOME."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TUNEFA_HOME", str(folder))
    return folder
