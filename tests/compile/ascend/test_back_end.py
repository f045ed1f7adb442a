"""Kernels for Ascend with the real compiler, where `tunefa ascend setup` has been run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.ascend_compiler import INSTALLED, needs_compiler
from tests.support.ascend_tiles import (
    B3,
    CRASHING,
    LANGUAGE,
    case,
    config,
)
from tunefa.compile.ascend import back_end, compiler_report
from tunefa.compile.ascend.compiler_report import Output
from tunefa.compile.ascend.toolchain import Toolchain
from tunefa.compile.contract import CompileError
from tunefa.spec.kernel import Kernel


@needs_compiler
def test_what_the_compiler_does_not_take_is_an_error(kernel: Kernel) -> None:
    assert INSTALLED is not None
    found = back_end.compile(
        INSTALLED, "module { func.func @f() { foo.bar } }", B3.compiler_target, {}
    )
    assert found.status == "error" and found.reason
    assert back_end.compile(INSTALLED, "module {}", "Ascend1", {}).status == "error"


@needs_compiler
def test_a_run_that_takes_too_long_is_ended(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_end, "LIMIT_S", 0.001)
    with pytest.raises(CompileError, match="the compiler took over") as caught:
        LANGUAGE.compile(case(kernel), config(64, 128))
    assert caught.value.outcome == "timeout"
    monkeypatch.undo()


def test_a_target_that_a_compiler_does_not_serve_is_told(tmp_path: Path) -> None:
    def why(version: str, target: str) -> str | None:
        compiler = tmp_path / version / "bishengir-compile"
        return back_end.why_not(Toolchain(Path("python"), "3.2.0", compiler, version), target)

    assert why("1.1.0 (428ab8fdab46 2026-04-30)", "Ascend910B3") is None
    assert why("1.1.0 (428ab8fdab46)", "Ascend910_9391") is None
    assert "1.1.0 crashes with every kernel" in (why("1.1.0 (428ab8)", "Ascend950PR_9589") or "")
    assert "setup --version 1.2.0" in (why("1.2.0", "Ascend950PR_9589") or "")
    (tmp_path / "1.2.0").mkdir()
    (tmp_path / "1.2.0" / "bishengir-compile-a5").touch()
    assert why("1.2.0", "Ascend950PR_9589") is None


WRITING = """#!/bin/sh
for word; do case $word in --size=*) size=${word#--size=};; esac; done
sleep 0.2
cat > memory_info_aiv.json <<END
{"Record": [{"scope": "ub", "error_info": "", "memory_info_array":
  [{"extent": $size, "offset": [0]}]}]}
END
sleep 0.2
"""


def test_runs_at_once_do_not_see_each_others_plans(tmp_path: Path) -> None:
    compiler = tmp_path / "bishengir-compile"
    compiler.write_text(WRITING)
    compiler.chmod(0o755)
    tools = Toolchain(Path("python"), "3.2.0", compiler, "1.1.0")

    def peak(size: int) -> int | None:
        found = back_end.compile(tools, "module {}", "Ascend910B3", {"size": 8 * size})
        return found.memories["ub"].peak_bytes

    sizes = [100, 200, 300, 400]
    with ThreadPoolExecutor(len(sizes)) as pool:
        assert list(pool.map(peak, sizes)) == sizes


def test_a_crash_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [Output(-11, ""), Output(0, "")]
    monkeypatch.setattr(back_end, "_run", lambda command, ir: outputs.pop(0))
    assert back_end.compile(CRASHING, "", "Ascend910B3", {}).status == "fits"
    outputs = [Output(-11, ""), Output(-11, "")]
    found = back_end.compile(CRASHING, "", "Ascend910B3", {})
    assert (found.status, found.memories, outputs) == ("crash", {}, [])


def test_the_key_holds_the_versions_of_both_tools() -> None:
    def key(
        tools: Toolchain, ir: str = "ir", target: str = "Ascend910B3", flag: bool = True
    ) -> str:
        return back_end.key(tools, ir, target, {"flag": flag})

    others = [replace(CRASHING, version="1.2.0"), replace(CRASHING, front_end="3.2.1")]
    keys = [key(CRASHING), *map(key, others), key(CRASHING, "other")]
    keys += [key(CRASHING, target="Ascend910B1"), key(CRASHING, flag=False)]
    assert len(set(keys)) == len(keys) and key(CRASHING) == keys[0]


def test_the_950_has_a_compiler_of_its_own(tmp_path: Path) -> None:
    tools = replace(CRASHING, compiler=tmp_path / "bishengir-compile")
    assert back_end._command(tools, "Ascend950PR_9589", {})[0].endswith("-a5")
    assert not back_end._command(tools, "Ascend910_9392", {})[0].endswith("-a5")
    assert compiler_report.from_output(Output(0, "")).status == "fits"
