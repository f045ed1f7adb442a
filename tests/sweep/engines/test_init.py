"""tunefa/sweep/engines/__init__.py: engines are found by their files."""

from __future__ import annotations

import sys

import pytest

from tunefa.errors import TunefaError
from tunefa.sweep import engines


def test_every_file_is_an_engine() -> None:
    assert "local" in engines.names()
    assert engines.create("local", workers=2)
    with pytest.raises(TunefaError, match=r"unknown engine 'locl'.*local"):
        engines.create("locl")


@pytest.mark.parametrize("name", [each for each in engines.names() if each != "local"])
def test_one_whose_library_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(TunefaError, match=rf"{name} needs a package .*pip install '.*--on {name}"):
        engines.create(name)
