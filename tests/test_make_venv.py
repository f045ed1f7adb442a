"""What `make` decides about the torch of the machine it runs on."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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
