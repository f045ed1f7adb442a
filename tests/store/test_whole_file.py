"""tunefa/store/whole_file.py: a file is replaced as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunefa.errors import TunefaError
from tunefa.store import whole_file


def test_it_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for data in (b"old", b"\0\xff new"):
        whole_file.write(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TunefaError, match="No space left on device; nothing there was changed: fr"):
        whole_file.write(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_stays(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match="is not a regular file: name a file to write"):
        whole_file.write(tmp_path, b"new")
    with pytest.raises(TunefaError, match=r"No such file or directory; .*create the folder"):
        whole_file.write(tmp_path / "missing" / "a", b"new")
