"""tunefa/compile/triton_tools.py: programs that do not run, and what ptxas compiles wrongly."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from triton import runtime

from tests.support.small_gluon import known_zero
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


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A binary, and a cache of Triton's that does not know it."""
    made = gluon.compile(SMALL, SMALL.default()).binary
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return made


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_binary_is_checked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unchecked: Any
) -> None:
    monkeypatch.setattr(wgmma_descriptors, "MENDED", (99, 0))
    triton_tools.check_descriptors(unchecked)
    monkeypatch.setattr(wgmma_descriptors, "unset", lambda sass: "UR5 of a wgmma")
    triton_tools.check_descriptors(unchecked)
    (note,) = kept(tmp_path)
    note.unlink()
    with pytest.raises(CompileError, match="UR5 of a wgmma"):
        triton_tools.check_descriptors(unchecked)
    assert not kept(tmp_path)


def test_a_cache_that_cannot_be_written_costs_only_time(
    monkeypatch: pytest.MonkeyPatch, unchecked: Any
) -> None:
    def put(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(wgmma_descriptors, "MENDED", (99, 0))
    monkeypatch.setattr(runtime.cache.FileCacheManager, "put", put)
    triton_tools.check_descriptors(unchecked)
    monkeypatch.setattr(wgmma_descriptors, "unset", lambda sass: "UR5 of a wgmma")
    with pytest.raises(CompileError, match="UR5 of a wgmma"):
        triton_tools.check_descriptors(unchecked)


def test_a_later_ptxas_is_not_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unchecked: Any
) -> None:
    monkeypatch.setattr(wgmma_descriptors, "MENDED", (12, 0))
    triton_tools.check_descriptors(unchecked)
    assert not kept(tmp_path)
