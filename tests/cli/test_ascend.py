"""tunefa ascend: what is said before anything is fetched, and after (how: test_install.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.compiler_index import COMPILER
from tunefa.cli import ascend
from tunefa.compile.ascend import pins, toolchain
from tunefa.compile.ascend.install import Installer


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records what would be fetched; the front end is there then."""
    asked: list[str] = []

    def front_end(self: Installer, python: str | None) -> None:
        asked.append(f"front end for {python}")
        folder = toolchain.front_end_folder()
        folder.mkdir(parents=True)
        (folder / toolchain.READY).write_text("{}")

    def compiler(self: Installer, version: str) -> Path:
        asked.append(f"compiler {version}")
        path = toolchain.compiler_folder(version) / "bishengir-compile"
        path.parent.mkdir(parents=True)
        path.write_text(COMPILER)
        path.chmod(0o755)
        return path

    monkeypatch.setattr(Installer, "front_end", front_end)
    monkeypatch.setattr(Installer, "compiler", compiler)
    return asked


def test_setup_says_what_is_there_where_and_what_is_next(
    run: Run, fetched: list[str], home: Path
) -> None:
    said = run("ascend", "setup").stdout
    assert fetched == ["front end for None", f"compiler {pins.COMPILERS[0]}"]
    assert f"triton-ascend {pins.FRONT_END}\nbishengir-compile 1.1.0 (428ab8fdab46" in said
    assert f"in {home / 'ascend'}" in said
    assert said.splitlines()[-1] == "  tunefa search --arch ascend910b3 --seqlen 8192"


def test_the_version_and_the_python_are_chosen(run: Run, fetched: list[str]) -> None:
    run("ascend", "setup", "--version", "1.2.0", "--python", "/some/python")
    assert fetched == ["front end for /some/python", "compiler 1.2.0"]
    assert (
        "'9.9' is not one of '1.1.0', '1.2.0'"
        in run("ascend", "setup", "--version", "9.9", code=2).stderr
    )


def test_a_compiler_that_is_none_is_said_before_anything_is_fetched(
    run: Run, fetched: list[str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho gcc 13\n")
    other.chmod(0o755)
    error = run("ascend", "setup", "--compiler", str(other), code=1).stderr
    assert "is not a bishengir-compile: it prints 'gcc 13'" in error and fetched == []


def test_a_compiler_that_is_there_is_not_fetched(
    run: Run, fetched: list[str], tmp_path: Path
) -> None:
    own = tmp_path / "bishengir-compile"
    own.write_text(COMPILER)
    own.chmod(0o755)
    said = json.loads(run("ascend", "setup", "--compiler", str(own), "--json").stdout)
    assert fetched == ["front end for None"] and said["path"] == str(own)
    assert said["problem"] is None and said["seconds"] >= 0


def test_its_name_is_that_of_the_command() -> None:
    assert ascend.command.name == "ascend" and list(ascend.command.commands) == ["setup"]
