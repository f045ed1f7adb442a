"""tunefa/compile/ascend/front_end.py: one that refuses, dies or takes too long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.ascend_compiler import needs_compiler
from tests.support.ascend_tiles import (
    B3,
    LANGUAGE,
    SOURCE,
    case,
    config,
    planned,
)
from tunefa.compile.ascend import front_end
from tunefa.compile.ascend.toolchain import Toolchain
from tunefa.compile.contract import CompileError
from tunefa.spec.kernel import Kernel


@needs_compiler
def test_what_the_front_end_refuses_is_told(kernel: Kernel, tmp_path: Path) -> None:
    spoiled = tmp_path / SOURCE.name
    spoiled.write_text(
        SOURCE.read_text().replace("tl.zeros([BLOCK_M], ", "tl.zeros([BLOCK_M + 1], ")
    )
    with pytest.raises(CompileError, match=r"power of 2|shape"):
        LANGUAGE.compile(case(replace(kernel, source=spoiled)), config(64, 64))


@needs_compiler
def test_the_front_end_takes_no_triton_of_ours(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('not this one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    front_end.lowered.cache_clear()
    front_end._running.cache_clear()
    assert planned(kernel, config(32, 32))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'no module named triton' >&2; exit 3", "died with exit code 3: no module named"),
        ("read line; printf '{'", "died with exit code 0"),
        ("sleep 60", "took over 0 s"),
    ],
)
def test_a_front_end_that_gives_no_answer_is_told_and_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(front_end, "LIMIT_S", 0.2 if "sleep" in script else 10.0)
    tools = Toolchain(python, "3.2.0", Path("bishengir-compile"), "1.1.0")
    task = front_end.Task(SOURCE, "", "attention", (), (), B3.compiler_target)
    before = front_end._running(python)
    with pytest.raises(front_end.FrontEndError, match=said):
        front_end.lowered(tools, task)
    assert front_end._running(python) is not before
