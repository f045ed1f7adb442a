"""TUNEFA_ACTIVATE: read at the end of `import torch`, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import TREE

METADATA = "Metadata-Version: 2.1\nName: tunefa-plugin-under-test\nVersion: 0\n"
ENTRY = "[torch.backends]\ntunefa_under_test = tunefa.integrations.autoload:at_import\n"
SHOW = """
import sys, torch
loaded = [name for name in sys.modules if name.startswith("tunefa")]
from torch.nn import attention
print(attention.current_flash_attention_impl(), *loaded)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder in which this tree's tunefa is installed, with its entry point."""
    folder = tmp_path / "site"
    info = folder / "tunefa_plugin_under_test-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY)
    return folder


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


@pytest.mark.parametrize(("value", "active"), [("1", "tunefa"), ("0", "None"), (None, "None")])
def test_the_variable_activates_tunefa_in_an_unchanged_program(
    installed: Path, value: str | None, active: str
) -> None:
    """And importing torch loads no runtime of tunefa's, whatever the variable says."""
    words, said = run(SHOW, installed, value)
    assert words[0] == active
    assert "tunefa" not in said
    assert "tunefa.integrations.autoload" in words
    assert not [name for name in words if "runtime" in name or "measure" in name]


def test_another_value_is_one_warning(installed: Path) -> None:
    words, said = run(SHOW, installed, "yes")
    assert words[0] == "None"
    assert said.count("UserWarning") == 1
    assert "TUNEFA_ACTIVATE=yes: tunefa is not active: unknown value 'yes': give 1" in said


def test_a_failure_is_one_warning_and_torch_is_imported(installed: Path) -> None:
    broken = "import sys; sys.modules['tunefa.integrations.sdpa'] = None\n"
    words, said = run(broken + SHOW, installed, "1")
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


def test_an_entry_point_that_is_there_twice_begins_once(installed: Path) -> None:
    info = installed / "tunefa_plugin_under_test-0.dist-info" / "entry_points.txt"
    info.write_text(ENTRY + ENTRY.splitlines()[1].replace("under_test", "again") + "\n")
    words, said = run(SHOW, installed, "1")
    assert words[0] == "tunefa" and "Warning" not in said
    _, said = run(SHOW, installed, "yes")
    assert said.count("UserWarning") == 1
