"""tunefa/spec/regular_file.py: nothing but a regular file is read, and nothing is waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tunefa.spec import regular_file


def test_a_file_and_a_link_to_it(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"one\r\ntwo\rthree\n")
    link.symlink_to(path)
    assert regular_file.content(link) == path.read_bytes()
    assert regular_file.text(path) == path.read_text() == "one\ntwo\nthree\n"


@pytest.mark.timeout(10)
def test_everything_else_is_an_error_at_once(tmp_path: Path) -> None:
    pipe, device, listening = tmp_path / "pipe", tmp_path / "device", tmp_path / "socket"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        for path in (pipe, device, listening, tmp_path, tmp_path / "missing"):
            with pytest.raises(OSError) as caught:
                regular_file.content(path)
            assert caught.value.strerror
