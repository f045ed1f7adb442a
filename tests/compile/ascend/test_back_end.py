"""Kernels for Ascend with the real compiler, where `tunefa ascend setup` has been run."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ascend_compiler import INSTALLED, THERE, needs_compiler
from tunefa.compile import languages
from tunefa.compile.ascend import back_end, compiler_report, front_end, toolchain
from tunefa.compile.ascend.compiler_report import CompilerReport, Output
from tunefa.compile.ascend.toolchain import Toolchain
from tunefa.compile.contract import CompileError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

LANGUAGE = languages.load("ascend")
SOURCE = Path(__file__).parents[2] / "support" / "ascend_attention.py"
WORKLOAD = Workload.parse("h8_q2048_d64_fp16_full")
B3 = archs.npu(archs.load("ascend910b3"))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The one of tests/support, with the user's toolchain."""
    monkeypatch.setattr(toolchain, "folder", lambda: THERE)
    space: Any = SimpleNamespace(language="ascend")
    return Kernel("attention", SOURCE, space)


def case(kernel: Kernel, arch: str = "ascend910b3") -> Case:
    """It on WORKLOAD."""
    return Case(kernel, WORKLOAD, Target.named(arch))


def config(block_m: int, block_n: int, multibuffer: bool = True) -> Config:
    """A tile."""
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "MULTIBUFFER": multibuffer}


def planned(kernel: Kernel, tile: Config, arch: str = "ascend910b3") -> CompilerReport:
    """The verdict on a tile that fits."""
    compiled = LANGUAGE.compile(case(kernel, arch), tile)
    found: CompilerReport = compiled.binary
    assert found.status == "fits"
    return found


@needs_compiler
@pytest.mark.parametrize(("block_m", "block_n"), [(32, 64), (64, 64), (128, 64), (128, 128)])
@pytest.mark.parametrize("multibuffer", [True, False])
def test_l1_and_l0c_are_what_the_formulas_say(
    kernel: Kernel, block_m: int, block_n: int, multibuffer: bool
) -> None:
    """The operands of both products in L1, twice with multibuffer, and their results in L0C."""
    found = planned(kernel, config(block_m, block_n, multibuffer))
    depth = 2 if multibuffer else 1
    operands = block_m * 64 + 2 * block_n * 64 + block_m * block_n
    assert found.memories["l1"].peak_bytes == depth * 2 * operands
    assert found.memories["l0c"].peak_bytes == 4 * (block_m * block_n + block_m * 64)
    assert 0 < (found.memories["ub"].peak_bytes or 0) <= B3.ub_bytes
    assert found.workspace_bytes and not found.changed


@needs_compiler
@pytest.mark.parametrize("arch", ["ascend910b1", "ascend910b2", "ascend910b4", "ascend910_93"])
def test_other_chips_of_the_family_plan_alike(kernel: Kernel, arch: str) -> None:
    tile = config(128, 128)
    assert planned(kernel, tile, arch).memories == planned(kernel, tile).memories


@needs_compiler
def test_an_overflow_says_what_it_asks_of_each_memory(kernel: Kernel) -> None:
    with pytest.raises(CompileError, match="L0C overflow: 262,144 of 131,072 B") as caught:
        LANGUAGE.compile(case(kernel), config(256, 256))
    assert caught.value.outcome == "compile_failed"
    assert caught.value.resources is not None
    assert caught.value.resources.l0c_bytes == 262144
    assert (caught.value.resources.ub_bytes or 0) > B3.ub_bytes


@needs_compiler
def test_a_verdict_is_kept(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    first = planned(kernel, config(64, 64))
    monkeypatch.setattr(back_end, "compile", None)
    assert planned(kernel, config(64, 64)) == first


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


@needs_compiler
def test_versions_are_told(kernel: Kernel) -> None:
    told = LANGUAGE.versions()
    assert told["triton"] == "ascend 3.2.0"
    assert told["compiler"].startswith("bishengir-compile 1.")


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


def test_what_a_compiler_left_that_was_ended_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own, others = (tmp_path / f"tunefa-ascend-{pid}-x" for pid in (os.getpid(), 1))
    own.mkdir()
    others.mkdir()
    back_end.clean()
    assert list(tmp_path.iterdir()) == [others]


CRASHING = Toolchain(Path("python"), "3.2.0", Path("bishengir-compile"), "1.1.0")


def test_a_crash_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [Output(-11, ""), Output(0, "")]
    monkeypatch.setattr(back_end, "_run", lambda command, ir: outputs.pop(0))
    assert back_end.compile(CRASHING, "", "Ascend910B3", {}).status == "fits"
    outputs = [Output(-11, ""), Output(-11, "")]
    found = back_end.compile(CRASHING, "", "Ascend910B3", {})
    assert (found.status, found.memories, outputs) == ("crash", {}, [])


def test_a_crash_is_not_kept(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "installed", lambda: CRASHING)
    monkeypatch.setattr(front_end, "lowered", lambda tools, task: "module {}")
    monkeypatch.setattr(back_end, "_run", lambda command, ir: Output(-11, ""))
    with pytest.raises(CompileError, match="died with exit code -11") as caught:
        LANGUAGE.compile(case(kernel), config(64, 64))
    assert (caught.value.outcome, caught.value.resources) == ("crashed", None)
    monkeypatch.setattr(back_end, "_run", lambda command, ir: Output(0, ""))
    assert planned(kernel, config(64, 64)).status == "fits"


def test_the_key_holds_the_versions_of_both_tools() -> None:
    def key(
        tools: Toolchain, ir: str = "ir", target: str = "Ascend910B3", flag: bool = True
    ) -> str:
        return back_end.key(tools, ir, target, {"flag": flag})

    others = [replace(CRASHING, version="1.2.0"), replace(CRASHING, front_end="3.2.1")]
    keys = [key(CRASHING), *map(key, others), key(CRASHING, "other")]
    keys += [key(CRASHING, target="Ascend910B1"), key(CRASHING, flag=False)]
    assert len(set(keys)) == len(keys) and key(CRASHING) == keys[0]


def test_without_it_the_command_that_installs_it_is_told() -> None:
    assert "tunefa ascend setup" in (LANGUAGE.why_no_compiler(B3) or "")
    assert "only formulas say" in LANGUAGE.why_no_compiler(archs.load("ascend310p"))
    assert "not an NPU" in LANGUAGE.why_no_compiler(archs.load("sm90"))


def test_the_950_has_a_compiler_of_its_own(tmp_path: Path) -> None:
    tools = replace(CRASHING, compiler=tmp_path / "bishengir-compile")
    assert back_end._command(tools, "Ascend950PR_9589", {})[0].endswith("-a5")
    assert not back_end._command(tools, "Ascend910_9392", {})[0].endswith("-a5")
    assert compiler_report.from_output(Output(0, "")).status == "fits"
