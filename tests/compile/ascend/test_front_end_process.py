"""tunefa/compile/ascend/front_end_process.py as the program that it is, with a triton of its own.

With the real triton-ascend it runs in test_front_end.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunefa.compile.ascend import front_end_process

PROGRAM = Path(front_end_process.__file__)


def answers(*tasks: Any, path: Path | None = None) -> list[dict[str, str]]:
    """The answers of the program; `path` is a folder of modules that it finds first."""
    lines = "".join(f"{task if isinstance(task, str) else json.dumps(task)}\n" for task in tasks)
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    code += f"import runpy; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], input=lines, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """A folder with a triton that cannot be imported, and that prints as it fails."""
    package = tmp_path / "triton"
    package.mkdir()
    (package / "__init__.py").write_text("print('noise')\nraise ImportError('no CANN here')\n")
    return tmp_path


def test_each_task_has_one_answer_and_a_failure_is_one(spoiled: Path) -> None:
    found = answers({"source": "x.py"}, "no json", {}, path=spoiled)
    assert len(found) == 3 and all(list(answer) == ["error"] for answer in found)
    assert found[0] == {"error": "ImportError: no CANN here"}
    assert found[1]["error"].startswith("JSONDecodeError: ")


def test_without_tasks_it_ends() -> None:
    assert answers() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("at 3:4:\n    x = y\n    ^\nNameError('y')", "ValueError: NameError('y')"),
        ("noise\nkernel.py:7: error: no such op\nmore", "ValueError: kernel.py:7: error: no such"),
        ("", "ValueError:"),
    ],
)
def test_the_telling_line_of_an_error(text: str, words: str) -> None:
    said = front_end_process._first_words(ValueError(text))
    assert said.startswith(words) and "\n" not in said and len(said) <= 300


def test_of_errors_in_a_row_the_first_cause_counts() -> None:
    outer = RuntimeError("compilation failed")
    outer.__cause__ = TypeError("int and str")
    assert front_end_process._first_words(outer) == "TypeError: int and str"


def test_it_imports_nothing_of_tunefa() -> None:
    """It runs in another environment, which has none."""
    assert "tunefa" not in PROGRAM.read_text().partition("from __future__")[2]
