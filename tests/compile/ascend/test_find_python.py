"""tunefa/compile/ascend/find_python.py: which Python serves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.compiler_index import run
from tunefa.compile.ascend import find_python, pins
from tunefa.errors import TunefaError


def test_another_python_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "PYTHON", (3, 1))
    ours = "{}.{}".format(*sys.version_info[:2])
    with pytest.raises(TunefaError, match=f"it is CPython {ours}: name a CPython 3.1"):
        find_python.find(sys.executable)
    with pytest.raises(TunefaError, match="it does not run"):
        find_python.find(str(tmp_path / "python"))
    with pytest.raises(TunefaError, match="it is not a Python"):
        find_python.find("/bin/true")
    assert "name a CPython 3.1" in run("--python", sys.executable, code=1).output
    monkeypatch.setattr(find_python, "_candidates", lambda: iter([]))
    with pytest.raises(TunefaError, match=r"no CPython 3.1 found, .*name one with --python"):
        find_python.find()
    monkeypatch.setattr(find_python, "_candidates", lambda: iter([sys.executable]))
    with pytest.raises(TunefaError, match=rf"{sys.executable}: it is CPython {ours}"):
        find_python.find()
