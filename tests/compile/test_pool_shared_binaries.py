"""tunefa/compile/pool.py: a binary that several workloads need is compiled once."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tunefa.compile import in_progress, pool
from tunefa.compile.pool import CompilePool, compilers
from tunefa.compile.workers import Later
from tunefa.spec.target import Case

LENGTHS = (512, 1024, 2048)


def test_processes_of_two_gpus_compile_the_binary_of_several_workloads_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    cases = [
        Case.from_names("attention_fwd_cuda_sm80", f"q{length}_d64", "sm80") for length in LENGTHS
    ]
    with compilers(2) as one, compilers(1) as other:
        for workers in (one, one, other):
            workers.submit(os.getpid, (), 60.0)
        pools = [CompilePool(cases[0], processes=one), CompilePool(cases[1], processes=one),
                 CompilePool(cases[2], processes=other)]  # fmt: skip
        asked = [pool.submit(case.default()) for pool, case in zip(pools, cases, strict=True)]
        trials = [pending.trial() for pending in asked]
    assert [trial.outcome for trial in trials] == ["ok"] * 3
    assert len({trial.resources for trial in trials}) == 1
    *cached, compiled = sorted(trial.compile_s or 0.0 for trial in trials)
    assert all(seconds < 0.2 * compiled for seconds in cached), (cached, compiled)
    found = list(tmp_path.glob("cache/cubins/*/*.cubin"))
    assert len(found) == 1


def test_another_process_is_waited_for_no_longer_than_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case.from_names("attention_fwd_cuda_sm80", "q512_d64", "sm80")
    monkeypatch.setattr(in_progress, "claimed", lambda name: contextlib.nullcontext(False))
    assert pool._compile_once(case.names, case.default()) == Later(pool._compile)
