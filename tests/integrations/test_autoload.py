"""TUNEFA_ACTIVATE: read at the end of `import torch`, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import TREE

Ends = dict[str, tuple[list[str], str]]
METADATA = "Metadata-Version: 2.1\nName: tunefa-plugin-under-test\nVersion: 0\n"
ENTRY = "[torch.backends]\ntunefa_under_test = tunefa.integrations.autoload:at_import\n"
SHOW = """
import sys, torch
loaded = [name for name in sys.modules if name.startswith("tunefa")]
from torch.nn import attention
print(attention.current_flash_attention_impl(), *loaded)
"""


AGAIN = ENTRY + ENTRY.splitlines()[1].replace("under_test", "again") + "\n"
BROKEN = "import sys; sys.modules['tunefa.integrations.sdpa'] = None\n"
CASES: dict[str, tuple[str | None, str, str]] = {
    "0": ("0", ENTRY, ""),
    "not set": (None, ENTRY, ""),
    "yes": ("yes", ENTRY, ""),
    "broken": ("1", ENTRY, BROKEN),
    "1, twice": ("1", AGAIN, ""),
    "yes, twice": ("yes", AGAIN, ""),
}
"""TUNEFA_ACTIVATE, the entry points, and what a program does before it imports torch."""
END_OF_IMPORT = """
import json, os, sys, torch
for folder, value, before in json.load(sys.stdin):
    if not os.fork():
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        sys.path.insert(0, folder)
        if value is not None:
            os.environ["TUNEFA_ACTIVATE"] = value
        exec(before)
        torch._import_device_backends()
        exec(sys.argv[1])
        sys.stdout.flush()
        os._exit(0)
    if os.wait()[1]:
        sys.exit(open(f"{folder}/err").read())
"""
"""Imports torch without its plugins, which takes seconds, and does the end of it in a fork for each
case: `import torch` calls the same function of PyTorch there."""


def install(folder: Path, entry_points: str) -> Path:
    """Makes a folder in which this tree's tunefa is installed."""
    info = folder / "tunefa_plugin_under_test-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(entry_points)
    return folder


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder in which this tree's tunefa is installed, with its entry point."""
    return install(tmp_path / "site", ENTRY)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """By case: the words that `SHOW` prints, and standard error."""
    folder = tmp_path_factory.mktemp("autoload")
    asked = {
        name: (str(install(folder / name, entry_points)), value, before)
        for name, (value, entry_points, before) in CASES.items()
    }
    env = {name: text for name, text in os.environ.items() if name != "TUNEFA_ACTIVATE"}
    env |= {"PYTHONPATH": str(TREE), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", END_OF_IMPORT, SHOW], input=json.dumps([*asked.values()]),
        env=env, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {
        name: ((folder / name / "out").read_text().split(), (folder / name / "err").read_text())
        for name in CASES
    }


def run(code: str, folder: Path, value: str | None) -> tuple[list[str], str]:
    """The words that a program prints and its standard error, with TUNEFA_ACTIVATE so."""
    env = {name: text for name, text in os.environ.items() if name != "TUNEFA_ACTIVATE"}
    env["PYTHONPATH"] = f"{folder}{os.pathsep}{TREE}"
    if value is not None:
        env["TUNEFA_ACTIVATE"] = value
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_the_variable_activates_tunefa_in_an_unchanged_program(installed: Path) -> None:
    said = run(SHOW, installed, "1")
    assert said[0][0] == "tunefa"
    loads_no_runtime(*said)


@pytest.mark.parametrize("case", ["0", "not set"])
def test_without_the_variable_it_is_not_active(ends: Ends, case: str) -> None:
    assert ends[case][0][0] == "None"
    loads_no_runtime(*ends[case])


def loads_no_runtime(words: list[str], said: str) -> None:
    """Importing torch loads no runtime of tunefa's, whatever the variable says."""
    assert "tunefa" not in said
    assert "tunefa.integrations.autoload" in words
    assert not [name for name in words if "runtime" in name or "measure" in name]


def test_another_value_is_one_warning(ends: Ends) -> None:
    words, said = ends["yes"]
    assert words[0] == "None"
    assert said.count("UserWarning") == 1
    assert "TUNEFA_ACTIVATE=yes: tunefa is not active: unknown value 'yes': give 1" in said


def test_a_failure_is_one_warning_and_torch_is_imported(
    ends: Ends,
) -> None:
    words, said = ends["broken"]
    assert words[0] == "None"
    assert said.count("UserWarning") == 1
    assert "tunefa is not active: import of tunefa.integrations.sdpa halted" in said


def test_tunefa_s_own_functions_may_be_what_imports_torch(installed: Path) -> None:
    code = """
import tunefa
tunefa.flash_attention  # imports torch, which imports the plugin
import torch
q = torch.randn(1, 3, 2, 8)
print(tunefa.flash_attention(q, q, q).shape[1])
"""
    words, said = run(code + SHOW, installed, "1")
    assert words[:2] == ["3", "tunefa"], said


def test_an_entry_point_that_is_there_twice_begins_once(
    ends: Ends,
) -> None:
    words, said = ends["1, twice"]
    assert words[0] == "tunefa" and "Warning" not in said
    _, said = ends["yes, twice"]
    assert said.count("UserWarning") == 1
