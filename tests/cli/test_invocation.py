"""tunefa/cli/invocation.py: how a shell starts this program again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tunefa.cli import invocation


@pytest.fixture
def script() -> Path:
    """An executable file env/bin/tunefa in the current folder."""
    path = Path("env", "bin", "tunefa")
    path.parent.mkdir(parents=True)
    path.touch(0o755)
    return path


def start(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> list[str]:
    """Returns `invocation.words` of a process that was started so, with `folder` on the PATH."""
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "argv", list(words))
    return invocation.words()


def test_the_name_is_enough_where_the_shell_finds_this_program(
    monkeypatch: pytest.MonkeyPatch, script: Path, tmp_path: Path
) -> None:
    there, elsewhere = script.parent.absolute(), tmp_path / "other"
    assert start(monkeypatch, there, str(there / "tunefa"), "show") == ["tunefa"]
    assert start(monkeypatch, elsewhere, "env/bin/tunefa", "show") == ["env/bin/tunefa"]
    elsewhere.mkdir()
    (elsewhere / "tunefa").touch(0o755)  # another tunefa, which the shell would start
    assert start(monkeypatch, elsewhere, "env/bin/tunefa") == ["env/bin/tunefa"]
    monkeypatch.chdir(script.parent)
    assert start(monkeypatch, elsewhere, "tunefa") == ["./tunefa"]


def test_a_module_is_started_by_the_same_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = ["/usr/bin/python3", "-X", "utf8", "-m", "tunefa", "show", "--all"]
    monkeypatch.setattr(sys, "orig_argv", started)
    main = "/site-packages/tunefa/__main__.py"
    assert start(monkeypatch, tmp_path, main, "show", "--all") == started[:5]


def test_a_program_that_uses_the_command_line_has_its_plain_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert start(monkeypatch, tmp_path, "/usr/bin/pytest", "-q") == ["tunefa"]
    assert start(monkeypatch, tmp_path, "") == ["tunefa"]
