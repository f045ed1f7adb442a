"""The imports of tunefa: in the order of its packages, no circles, nothing heavy at the start."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.tree import TREE, statements

PACKAGE = TREE / "tunefa"
ROOT = ("_version", "errors", "assets")
"""Modules at the root that every other may import."""
ORDER = (
    *("spec", "store", "costmodel", "compile", "measure", "search", "sweep", "runtime"),
    *("integrations", "experiments", "report", "cli"),
)
"""The packages: each imports from itself and from those before it."""
APART = {("runtime", "search"), ("runtime", "sweep")}
"""Pairs of packages of which the first must not import from the second either."""
TOP = ("__init__", "__main__")
"""The modules that give users the package, and its command line."""
LIGHT = ("spec", "store")
"""Packages that import neither torch nor triton."""
HEAVY = {"torch", "triton", "optuna", "numpy"}


def name_of(path: Path) -> str:
    """The dotted name of a file's module; of a package's `__init__.py`, that of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def package_of(module: str) -> str:
    """The package of ORDER that a module is in; of one at the root, its own name."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@functools.cache
def imported(module: str) -> list[tuple[int, str]]:
    """(line, dotted name) of every import of a module: under TYPE_CHECKING, inside functions, and
    through importlib."""
    text = MODULES[module].read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(text)) if "import_module" in text else statements(text)
    return [*imports(module, nodes)]


def imports(module: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import among the nodes of a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: write the whole name"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield node.lineno, whole if whole in MODULES else str(node.module)
        elif isinstance(node, ast.Call) and called(node) == "import_module":
            yield from ((node.lineno, name) for name in loaded(module, node.args[0]))


def called(node: ast.Call) -> str:
    """The last part of the name of what is called; empty where it has none."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def loaded(module: str, argument: ast.expr) -> list[str]:
    """The modules `import_module` may load: of f"{__name__}.{name}" all in that folder."""
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    if not isinstance(argument, ast.JoinedStr):  # names in a table, which are checked as text
        return [name for name in MODULES if f'"{name}"' in MODULES[module].read_text()]
    return [name for name in MODULES if name.rpartition(".")[0] == module]


def graph() -> Mapping[str, set[str]]:
    """By module, which other modules of tunefa it imports."""
    return {
        module: {name for _, name in imported(module) if name in MODULES and name != module}
        for module in MODULES
    }


def test_every_module_is_in_a_package() -> None:
    places = {package_of(module) for module in MODULES}
    assert places == {*ROOT, *ORDER, *TOP}


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_order(module: str) -> None:
    own = package_of(module)
    if own in TOP:
        return
    allowed = {*ROOT, *(ORDER[: ORDER.index(own) + 1] if own in ORDER else ())}
    allowed -= {other for first, other in APART if first == own}
    for line, name in imported(module):
        if name in MODULES:
            assert package_of(name) in allowed, f"{module}:{line} imports {name}"
        elif own in (*ROOT, *LIGHT):
            assert name.partition(".")[0] not in {"torch", "triton"}, f"{module}:{line}: {name}"


def circle_through(module: str, edges: Mapping[str, set[str]]) -> list[str]:
    """A shortest way from a module back to itself; empty where there is none."""
    ways = [[module]]
    seen: set[str] = set()
    for way in ways:
        for name in sorted(edges[way[-1]]):
            if name == module:
                return [*way, module]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def test_there_are_no_circles() -> None:
    edges = graph()
    circles = {" -> ".join(way) for module in edges if (way := circle_through(module, edges))}
    assert not circles


@pytest.mark.parametrize("arguments", [["-c", "import tunefa"], ["-m", "tunefa", "--help"]])
def test_starting_loads_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60)
    lines = done.stderr.splitlines()
    said = [line for line in lines if not line.startswith("import time:")]
    assert done.returncode == 0, "\n".join(said)
    loaded = {line.rpartition("|")[2].strip() for line in lines}
    assert "tunefa" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
