"""The decisions of `make` about its machine's torch, and what `make search` runs."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.tree import TREE

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "make_venv.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_venv", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_old_pythons_get_as_far_as_the_sentence() -> None:
    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 6))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("3.7.1", (3, 7)),
        ("2.8.0a0+34c6371d24.nv25.08", (2, 7)),
        ("2.10.0.dev20251001+cu130", (2, 9)),
        ("2.9.1rc1", (2, 9)),
        ("unknown", (0, 0)),
    ],
)
def test_release(script: ModuleType, version: str, expected: tuple[int, int]) -> None:
    assert script.release(version) == expected


@pytest.mark.parametrize(
    ("version", "requires", "reason"),
    [
        ("2.13.0", ['triton==3.7.1; platform_system == "Linux"'], ""),
        ("2.13.0+cpu", ["jinja2"], ""),
        ("2.7.1", [], "older than 2.8"),
        ("2.8.0", ['triton==3.4.0; platform_system == "Linux"'], "requires triton 3.4.0"),
    ],
)
def test_unfit(script: ModuleType, version: str, requires: list[str], reason: str) -> None:
    found = script.unfit(script.Torch(version, "", requires, "/"))
    assert reason in found
    assert bool(found) == bool(reason)


def test_constraints_pin_the_pair_without_a_torch(script: ModuleType) -> None:
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(script.constraints(None).splitlines())


@pytest.mark.parametrize(("triton", "pinned"), [("3.6.0", True), ("3.10.0", False), ("", False)])
def test_constraints_keep_the_torch_that_is_there(
    script: ModuleType, triton: str, pinned: bool
) -> None:
    lines = script.constraints(script.Torch("2.12.0+cu130", triton, [], "/")).splitlines()
    assert lines[0] == "torch==2.12.0+cu130"
    assert [line for line in lines if line.startswith("triton")] == [f"triton=={triton}"] * pinned
    assert any(line.startswith("ruff==") for line in lines)


def search_of_make(folder: Path, args: str | None = None) -> str:
    """The command that `make search`, started in a folder, runs after it has set everything up."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    words = ["make", "-n", "-C", str(TREE), "search", *([] if args is None else [f"ARGS={args}"])]
    done = subprocess.run(
        words, env={**env, "PWD": str(folder)}, capture_output=True, text=True, check=True
    )
    (line,) = [line for line in done.stdout.splitlines() if '/bin/tunefa" search' in line]
    return line


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (None, "--arch sm90 --seqlen 8192"),
        ("--arch sm80", "--arch sm80 --seqlen 8192"),
        ("--arch sm80 --seqlen 4k", "--arch sm80 --seqlen 4k"),
        ("-w q512 --window=9", "-w q512 --window=9"),
        ("--decode --batch 64", "--decode --batch 64"),
        ("--resume", "--resume --seqlen 8192"),
    ],
)
def test_make_search_has_a_workload_whatever_else_is_given(args: str | None, options: str) -> None:
    assert search_of_make(TREE, args).split() == ['".venv/bin/tunefa"', "search", *options.split()]


def test_make_search_from_another_folder_has_a_path_that_works_there(tmp_path: Path) -> None:
    assert search_of_make(tmp_path).startswith(f'"{TREE}/.venv/bin/tunefa" search ')
