"""tests/ mirrors tunefa/: each module has its tests at the same place, and each file a module."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.support.tree import TREE, statements

TESTS = TREE / "tests"
DECLARATIONS = {
    "__main__": "two lines, which tests/test_imports.py runs",
    "_version": "a number",
    "cli/exit_codes": "four numbers",
    "compile/__init__": "a docstring",
    "compile/ascend/__init__": "a docstring",
    "compile/launch/__init__": "a docstring",
    "cli/reports/__init__": "a docstring",
    "costmodel/__init__": "a docstring",
    "experiments/__init__": "a docstring",
    "integrations/__init__": "a docstring",
    "integrations/compat/__init__": "a docstring",
    "measure/__init__": "a docstring",
    "measure/objective": "a protocol and what it returns",
    "report/__init__": "a docstring",
    "runtime/__init__": "a docstring",
    "runtime/choice": "a dataclass",
    "runtime/job": "protocols",
    "search/__init__": "a docstring",
    "search/strategy": "a dataclass and a protocol",
    "spec/__init__": "a docstring",
    "store/__init__": "a docstring",
    "sweep/__init__": "a docstring",
    "sweep/engine": "a dataclass and a protocol",
}
"""Modules without behaviour of their own, and what they are instead."""
APART = ("attacks", "benchmarks", "contracts", "examples", "fixtures", "gpu", "kernels", "support")
"""Folders of tests/ that mirror nothing in tunefa/."""
OF_THE_TREE = {
    "docs",
    "imports",
    "machine_code",
    "make_venv",
    "mirror",
    "mutants",
    "packaging",
    "sizes",
    "words",
}
"""The names of tests/test_<name>.py that are about the whole tree, or about scripts/."""


@functools.cache
def modules() -> frozenset[str]:
    """The modules of tunefa/ as paths without their suffix."""
    package = TREE / "tunefa"
    found = (path.relative_to(package).with_suffix("") for path in package.rglob("*.py"))
    return frozenset(path.as_posix() for path in found)


def files() -> list[Path]:
    """The files of tests that mirror tunefa/, relative to tests/."""
    found = (path.relative_to(TESTS) for path in sorted(TESTS.rglob("test_*.py")))
    return [path for path in found if path.parts[0] not in APART]


def module_of(path: Path, known: frozenset[str]) -> str | None:
    """The module that tests/`path` is about: `test_<module>.py` or `test_<module>_<aspect>.py`.

    A package's own `__init__.py` has its tests in `test_init.py`. Of several the longest counts.
    """
    words = path.stem.removeprefix("test_").split("_")
    if words[-1] == "":  # import_, which has the name of a keyword
        words[-2:] = [f"{words[-2]}_"]
    for end in range(len(words), 0, -1):
        name = "_".join(words[:end])
        module = (path.parent / ("__init__" if name == "init" else name)).as_posix()
        if module in known:
            return module
    return None


def test_every_module_has_tests() -> None:
    tested = {module_of(path, modules()) for path in files()}
    missing = sorted(modules() - tested - DECLARATIONS.keys())
    assert not missing, f"add tests/<module>.py, with test_ before its name, for {missing}"


def test_modules_of_declarations_are_there_and_have_no_tests() -> None:
    tested = {module_of(path, modules()) for path in files()}
    assert DECLARATIONS.keys() <= modules()
    assert not DECLARATIONS.keys() & tested, "it has tests: take it from the list"


@pytest.mark.parametrize("module", [name for name in DECLARATIONS if name != "__main__"])
def test_declarations_declare_only(module: str) -> None:
    """A function of a protocol or a dataclass may have a docstring for a body, and no more."""
    tree = ast.parse((TREE / "tunefa" / f"{module}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            (body,) = node.body
            assert isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant), node.name


def test_every_file_of_tests_has_a_module() -> None:
    lost = [
        path.as_posix()
        for path in files()
        if module_of(path, modules()) is None
        and not (len(path.parts) == 1 and path.stem.removeprefix("test_") in OF_THE_TREE)
    ]
    assert not lost, f"rename to test_<module>_<aspect>.py at the module's place: {lost}"


def test_tests_take_nothing_from_each_other() -> None:
    """The code that two of them need lies in tests/support or a conftest.py."""
    for path in sorted(TESTS.rglob("*.py")):
        for node in statements(path.read_text(encoding="utf-8")):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            within = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in (within + alias.name for alias in node.names):
                taken = name.startswith("tests.") and ".test_" in name
                assert not taken, f"{path}:{node.lineno} imports {name}"
