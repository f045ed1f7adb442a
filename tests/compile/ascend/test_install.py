"""`tunefa ascend setup`, with real environments and pip, and wheels of a few bytes."""

from __future__ import annotations

import platform
import shutil
import sys
import threading
from pathlib import Path

import pytest

from tests.support.compiler_index import Steps, setup
from tunefa.compile.ascend import find_python, install, toolchain
from tunefa.compile.ascend.install import Installer
from tunefa.errors import TunefaError


def test_it_is_installed_once_and_mended_where_it_is_damaged(index: Path) -> None:
    steps = Steps()
    setup(steps)
    assert [step.split()[0] for step in steps] == [
        "making", "fetching", "fetching", "installing", "fetching", "unpacking"
    ]  # fmt: skip
    found = toolchain.installed()
    assert found.version == "1.1.0 (428ab8fdab46 2026-04-30)" and found.short_version == "1.1.0"
    assert toolchain.state()["compilers_installed"] == ["1.1.0"]
    assert not list(toolchain.folder().glob("wheels/*"))

    steps.clear()
    setup(steps)
    assert steps == []
    found.compiler.write_text("damaged")
    setup(steps)
    assert [step.split()[0] for step in steps] == ["fetching", "unpacking"]

    steps.clear()
    setup(steps, "1.2.0")
    assert [step.split()[0] for step in steps] == ["fetching", "unpacking"]
    assert toolchain.state()["compilers_installed"] == ["1.1.0", "1.2.0"]
    assert "compiler-1.2.0" in str(toolchain.installed().compiler)


def test_interrupted_it_goes_on_with_what_came_whole(index: Path) -> None:
    steps = Steps()
    steps.until = "installing"
    with pytest.raises(KeyboardInterrupt):
        setup(steps)
    with pytest.raises(TunefaError, match="front end is not installed: run 'tunefa ascend setup'"):
        toolchain.installed()
    for wheel in index.glob("triton*"):  # it is not asked for again
        wheel.unlink()
    steps.until = "unpacking"
    with pytest.raises(KeyboardInterrupt):
        setup(steps)
    with pytest.raises(TunefaError, match="compiler is not installed: run 'tunefa ascend setup'"):
        toolchain.installed()
    steps.until = "never"
    setup(steps)
    assert toolchain.installed().compiler.is_file()


def test_a_wheel_that_is_another_one_is_not_installed(index: Path) -> None:
    wheel = next(index.glob("triton*"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(TunefaError, match="the downloaded file is not the one that tunefa expects"):
        setup(Steps())
    assert toolchain.state()["front_end"] is None


def test_an_index_that_cannot_be_reached_is_said(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(TunefaError, match="index cannot be reached, or the connection broke"):
        setup(Steps())


def test_another_machine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(find_python, "find", lambda python: Path(sys.executable))
    with pytest.raises(TunefaError, match=r"no triton-ascend for this machine, only for Linux on"):
        Installer(Steps()).front_end(None)


def test_the_progress_counts_a_folder_that_changes_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"12345")
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            inner = tmp_path / "unpack" / "inner"
            inner.mkdir(parents=True)
            (inner / "file").write_bytes(b"1")
            shutil.rmtree(tmp_path / "unpack")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        sizes = {install._size(tmp_path) for _ in range(2000)}
    finally:
        stop.set()
        thread.join()
    assert sizes <= {5, 6}
