"""tunefa/compile/languages/ascend.py with the real compiler, where it is installed, and without."""

from __future__ import annotations

import pytest

from tests.support.ascend_compiler import needs_compiler
from tests.support.ascend_tiles import (
    B3,
    CRASHING,
    LANGUAGE,
    case,
    config,
    planned,
)
from tunefa.compile.ascend import back_end, front_end, toolchain
from tunefa.compile.ascend.compiler_report import Output
from tunefa.compile.contract import CompileError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.kernel import Kernel


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
def test_versions_are_told(kernel: Kernel) -> None:
    told = LANGUAGE.versions()
    assert told["triton"] == "ascend 3.2.0"
    assert told["compiler"].startswith("bishengir-compile 1.")


def test_a_crash_is_not_kept(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "installed", lambda: CRASHING)
    monkeypatch.setattr(front_end, "lowered", lambda tools, task: "module {}")
    monkeypatch.setattr(back_end, "_run", lambda command, ir: Output(-11, ""))
    with pytest.raises(CompileError, match="died with exit code -11") as caught:
        LANGUAGE.compile(case(kernel), config(64, 64))
    assert (caught.value.outcome, caught.value.resources) == ("crashed", None)
    monkeypatch.setattr(back_end, "_run", lambda command, ir: Output(0, ""))
    assert planned(kernel, config(64, 64)).status == "fits"


def test_without_it_the_command_that_installs_it_is_told() -> None:
    assert "tunefa ascend setup" in (LANGUAGE.why_no_compiler(B3) or "")
    assert "only formulas say" in LANGUAGE.why_no_compiler(archs.load("ascend310p"))
    assert "not an NPU" in LANGUAGE.why_no_compiler(archs.load("sm90"))
