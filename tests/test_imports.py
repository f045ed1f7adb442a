"""What tunefa imports: imports point down its layers, and starting it loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent
PACKAGE = TREE / "tunefa"

LAYERS = (
    {"_version", "errors", "assets", "budget", "expr", "strict_yaml", "workload", "trial"}
    | {"arch", "arch_file", "models", "recent"},
    {
        "occupancy",
        "space",
        "space_file",
        "tiling",
        "kernel",
        "record",
        "document",
        "store",
        "lookup",
        "journal",
        "ledger",
    }
    | {"strategies", "sampler", "study", "surrogate", "gaussian", "landscape", "tally"},
    {
        "languages",
        "model",
        "check",
        "timing",
        "compile_pool",
        "workers",
        "monitor",
        "race",
        "provenance",
        "exports",
    }
    | {"reference", "call", "frozen", "driver", "launch", "triton_abi"}
    | {"parameters", "host_side", "cuda_abi", "nvrtc", "cubin_cache"}
    | {"packed", "packed_call", "chip", "compiler", "ascend"},
    {
        "evaluate",
        "final",
        "loop",
        "bench",
        "measured",
        "modelled",
        "replayed",
        "tiles",
        "verify",
        "winner",
        "problem",
        "resume",
        "search",
        "transfer",
        "kernel_plan",
        "packed_plan",
        "plan",
        "runtime",
        "attention",
        "varlen",
        "ops",
        "varlen_ops",
    },
    {"__init__", "__main__", "cli", "reports"},
)
"""Modules and subpackages of tunefa by layer: each imports from its own and from those before."""

LAYER = {name: layer for layer, names in enumerate(LAYERS) for name in names}
HEAVY = {"torch", "triton", "optuna", "numpy"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    """The module or subpackage of tunefa that a file belongs to."""
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import of a file, those inside functions included."""
    # Of tunefa/a/b.py and of tunefa/a/__init__.py, the package is tunefa.a.
    package = ("tunefa", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                # `from tunefa import store` imports a module, `from tunefa.store import Store` not;
                # telling by the first two parts, the name behind them does no harm.
                yield node.lineno, f"{module}.{alias.name}"


def target(module: str) -> str | None:
    """The module or subpackage of tunefa that a dotted name leads to; None outside tunefa."""
    first, _, rest = module.partition(".")
    if first != "tunefa":
        return None
    name = rest.partition(".")[0]
    is_module = name in LAYER or (PACKAGE / f"{name}.py").is_file() or (PACKAGE / name).is_dir()
    return name if name and is_module else "__init__"


def test_every_module_has_a_layer() -> None:
    missing = {part(path) for path in SOURCES} - LAYER.keys()
    assert not missing, f"add {sorted(missing)} to a layer of LAYERS in {Path(__file__).name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = LAYER.get(part(path), 0)
    for line, module in imported(path):
        to = target(module)
        if to is not None:
            assert LAYER.get(to, 0) <= own, (
                f"{path.name}:{line} imports {module} of layer {LAYER[to]} from layer {own}"
            )
        elif own <= 1:
            needs = module.partition(".")[0]
            assert needs not in {"torch", "triton"}, (
                f"{path.name}:{line}: layer {own} needs {needs}"
            )


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


COMPILING = """
import sys
from tunefa import compile_pool, kernel
for name in kernel.names():
    made = kernel.load(name)
    if made.space.vendor != "nvidia":
        continue
    config = made.default(compile_pool.Workload.parse("q100_d64"), compile_pool.archs.load("sm90"))
    print(compile_pool._compile(name, "q100_d64", "sm90", dict(config), True)[3])
sys.exit("torch" in sys.modules)
"""


def test_compilers_do_without_pytorch() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILING], cwd=TREE, capture_output=True)
    assert done.returncode == 0 and not done.stdout.strip(), done
