"""tunefa/compile/triton_tools.py: programs that do not run, and what ptxas compiles wrongly."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_gluon import known_zero
from tunefa import assets
from tunefa.compile import contract, triton_tools, wgmma_descriptors
from tunefa.compile.contract import CompileError
from tunefa.compile.languages import gluon, triton
from tunefa.errors import TunefaError
from tunefa.spec.target import Case

SMALL = Case.from_names("attention_fwd_gluon_sm90", "b1_h1_q256_k256_d64_full", "sm90")


@pytest.mark.parametrize(
    "problem",
    [FileNotFoundError(2, "No such file"), subprocess.CalledProcessError(1, "ptxas")],
)
def test_a_tool_that_does_not_run_is_a_missing_compiler(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    made = gluon.compile(SMALL, SMALL.default())

    def run(*args: Any, **options: Any) -> None:
        raise problem

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(TunefaError, match=r"no compiler found: .*ptxas does not run.*reinstall"):
        triton.versions()
    with pytest.raises(TunefaError, match=r"no compiler found: .*cuobjdump does not run"):
        _ = made.resources


def test_ptxas_12_8_leaves_descriptors_unset_and_the_config_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case.from_names(
        "attention_bwd_two_pass_gluon_sm90", "bwd_b2_h2_q38_k1014_d128_causal", "sm90"
    )
    contract.variants(case, case.default(), True)["binary"]["function"]()
    key_gradients, key_consumer = (
        importlib.import_module(f"tunefa.kernels.gluon.{name}")
        for name in ("key_gradients", "key_consumer")
    )
    changed = key_gradients.key_gradients, key_consumer.consumer, key_consumer._tile
    for each in changed:  # Triton keeps the hash of a function's source, and of what it calls
        monkeypatch.setattr(each, "hash", None)
    monkeypatch.setattr(key_consumer, "unknown_zero", known_zero)
    if triton_tools.release(triton_tools.compiler()) >= wgmma_descriptors.MENDED:
        gluon.compile(case, case.default())
    else:
        words = r"ptxas .* leaves UR\d+ of the wgmma at 0x\w+ of key_gradients unset"
        with pytest.raises(CompileError, match=words):
            gluon.compile(case, case.default())


def test_a_binary_is_disassembled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(assets, "cache", lambda: tmp_path)
    monkeypatch.setattr(wgmma_descriptors, "MENDED", (99, 0))
    made = gluon.compile(SMALL, SMALL.default()).binary
    monkeypatch.setattr(wgmma_descriptors, "unset", lambda sass: "UR5 of a wgmma")
    triton_tools.check_descriptors(made)
    (tmp_path / f"checked-{wgmma_descriptors.FORMAT}" / made.hash).unlink()
    with pytest.raises(CompileError, match="UR5 of a wgmma"):
        triton_tools.check_descriptors(made)


def test_a_later_ptxas_is_not_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(assets, "cache", lambda: tmp_path)
    monkeypatch.setattr(wgmma_descriptors, "MENDED", (12, 0))
    gluon.compile(SMALL, SMALL.default())
    assert not list(tmp_path.iterdir())
