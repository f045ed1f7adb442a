"""The group: help, version, exit codes, and how fast it starts."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.conftest import Run
from tests.support.processes import environment
from tests.support.tree import TREE
from tunefa import cli
from tunefa._version import __version__
from tunefa.cli import COMMANDS, main, space
from tunefa.errors import TunefaError

HEAVY = {"torch", "triton", "optuna", "numpy", "rich", "yaml"}
JSON_COMMANDS = {
    "show": (),
    "space": ("--arch", "sm90", "--seqlen", "8192"),
    "explain": ("--arch", "sm90", "--seqlen", "8192", "--no-compile"),
    "doctor": ("--arch", "sm90"),
}


def test_help_names_every_command_and_who_needs_a_gpu(run: Run) -> None:
    text = run("--help").stdout
    assert all(f"  {name}" in text for name in COMMANDS)
    assert "Only measuring needs a GPU" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_that_says_whether_it_needs_a_gpu(run: Run, name: str) -> None:
    text = run(name, "--help").stdout
    assert ("Needs a GPU." if name == "verify" else "Needs no GPU") in text
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_module(name: str) -> None:
    path = Path(cli.__file__).parent / f"{'import_' if name == 'import' else name}.py"
    assert path.is_file()


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"tunefa {__version__}\n"


def test_unknown_command_suggests_the_nearest(run: Run) -> None:
    error = run("serch", code=2).stderr
    assert "unknown command 'serch': did you mean search? (known: search, sweep," in error


def test_unknown_option_suggests_the_nearest(run: Run) -> None:
    assert "--seqlen" in run("space", "--seqlne", "5", code=2).stderr


def test_errors_are_one_sentence_with_their_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(TunefaError):
        exit_code = 7

    def fail(**_: object) -> None:
        raise Odd("it is odd")

    monkeypatch.setattr(space.command, "callback", fail)
    result = CliRunner().invoke(main, ["space"])
    assert (result.exit_code, result.stdout, result.stderr) == (7, "", "Error: it is odd\n")


def test_ctrl_c_anywhere_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(space.command, "callback", interrupt)
    result = CliRunner().invoke(main, ["space"])
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [("show",), ("export", "--help")])
def test_a_full_disk_behind_standard_output_is_one_sentence(
    home: Path, words: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "tunefa", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, env=environment(home), stdout=full, stderr=subprocess.PIPE, text=True
        )
    error = "Error: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, error)


def test_an_error_of_another_file_keeps_its_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(**_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk of a bug is full")

    monkeypatch.setattr(space.command, "callback", fail)
    with open(tmp_path / "stdout", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(OSError, match="the disk of a bug is full"):
            main.main(["space"], prog_name="tunefa")


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(space.command, "callback", fail)
    assert isinstance(CliRunner().invoke(main, ["space"]).exception, ZeroDivisionError)


@pytest.mark.parametrize("name", JSON_COMMANDS)
def test_json_is_one_document_on_standard_output(run: Run, name: str) -> None:
    assert isinstance(json.loads(run(name, *JSON_COMMANDS[name], "--json").stdout), dict)


def test_help_is_there_at_once_and_loads_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "tunefa", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        after = os.times()  # what it computes: on a busy machine it may take much longer
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    assert done.stdout.startswith("Usage: tunefa ")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    assert min(seconds) < 0.3
