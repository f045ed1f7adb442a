"""The length of files and functions: what is longer is two things."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.tree import TREE, statements

PYTHON = ("tunefa", "tests", "benchmarks", "scripts")
PYTHON_LINES, KERNEL_LINES, MOST = 300, 400, 40
KERNEL_SUFFIXES = {".py", ".cu", ".cuh"}


def sources() -> list[Path]:
    """Every file of Python, and of kernels/ those in CUDA C++ too; relative to the tree."""
    found = [path for folder in PYTHON for path in (TREE / folder).rglob("*.py")]
    found += [path for path in (TREE / "kernels").rglob("*") if path.suffix in KERNEL_SUFFIXES]
    paths = sorted(path.relative_to(TREE) for path in found)
    return [path for path in paths if path.parts[:2] != ("tests", "fixtures")]


WHOLE = {
    "kernels/attention_fwd_cuda_sm80.cu: a kernel": 49,
    "kernels/cuda/attention_consumer.cuh: consume": 76,
    "kernels/cuda/attention_producer.cuh: produce": 49,
}
"""Device functions that stay whole, and their lines: split, they compile to other machine code."""


def python_functions(text: str, is_kernel: bool = False) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function, decorators and docstring aside.

    The signature of a kernel's functions does not count: it lists the parameters of the launch.
    """
    for node in statements(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            first = node.body[0]
            start = first.lineno if is_kernel else node.lineno
            lines = node.end_lineno - start + 1
            if ast.get_docstring(node) is not None:
                assert first.end_lineno is not None
                lines -= first.end_lineno - first.lineno + 1
            yield node.name, lines


def cuda_functions(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function in CUDA C++: from its head to the brace in the first column
    that closes it."""
    head = re.compile(r"\b(?!__launch_bounds__)(\w+)\s*\(|\b__launch_bounds__")
    start, name = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        begins = re.match(r"[A-Za-z_]", line) and not line.startswith("struct")
        if not name and begins and (found := head.search(line)):
            start, name = number, found[1] or "a kernel"
        if name and line.startswith("}"):
            yield name, number - start + 1
            name = ""
        elif name and line.rstrip().endswith(";") and line[:1].strip() and "{" not in line:
            name = ""  # a declaration


def test_no_file_is_too_long() -> None:
    """A file that is over is two things in one."""
    long = []
    for path in sources():
        most = KERNEL_LINES if path.parts[0] == "kernels" else PYTHON_LINES
        lines = len((TREE / path).read_text(encoding="utf-8").splitlines())
        long += [f"{path} has {lines} lines, over {most}"] if lines > most else []
    assert not long, "\n".join(long)


def test_no_function_is_too_long() -> None:
    long = []
    for path in sources():
        text = (TREE / path).read_text(encoding="utf-8")
        is_kernel = path.parts[0] == "kernels"
        python = path.suffix == ".py"
        functions = python_functions(text, is_kernel) if python else cuda_functions(text)
        for name, lines in functions:
            if lines > WHOLE.get(f"{path}: {name}", MOST):
                long.append(f"{path}: {name} has {lines} lines")
    assert not long, f"functions of over {MOST} lines:\n" + "\n".join(long)


def test_lines_are_counted_as_promised() -> None:
    text = (
        'def one():\n    """A.\n\n    B.\n    """\n    return 1\n\n\n@decorated\ndef two(): pass\n'
    )
    assert dict(python_functions(text)) == {"one": 2, "two": 1}
    signature = "def one(\n    a,\n    b,\n):\n    a = b\n    return a\n"
    assert list(python_functions(signature, is_kernel=True)) == [("one", 2)]
    cuda = (
        "static __device__ int one(int a,\n                          int b) {\n"
        "    if (a) {\n    }\n    return b;\n}\n\n__device__ void declared(int a);\n"
        'extern "C" __global__ void __launch_bounds__(128)\ntwo(int a) {\n}\n'
    )
    assert list(cuda_functions(cuda)) == [("one", 6), ("a kernel", 3)]
