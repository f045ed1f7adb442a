"""tunefa/runtime/planner.py: what plans are made with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fake_kernel import FakeKernel, FakeLanguage
from tests.support.sample_records import measured
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.plan import Forward
from tunefa.runtime.process import Runtime
from tunefa.store import results as store


def job() -> Forward:
    q, k = torch.randn(1, 20, 4, 32), torch.randn(1, 30, 2, 32)
    return Forward(Call.of(Tensors(q, k, k), Options(), None))


def test_libraries_are_left_out_from_then_on(fresh: Runtime, language: FakeLanguage) -> None:
    kernels: Any = (
        FakeKernel(name="attention_fwd_cudnn", is_library=True),
        FakeKernel(name="attention_fwd_triton"),
    )
    fresh.planner.kernels = kernels
    assert len(fresh.planner._known(job())[1]) == 2
    fresh.planner.leave_out_libraries()
    assert [each.name for each in fresh.planner._known(job())[1]] == ["attention_fwd_triton"]


def test_kernels_of_another_op_are_left_out(fresh: Runtime, language: FakeLanguage) -> None:
    kernels: Any = FakeKernel(op="bwd"), FakeKernel(name="own")
    fresh.planner.kernels = kernels
    assert [each.name for each in fresh.planner._known(job())[1]] == ["own"]


def test_records_that_were_loaded_come_first(
    fresh: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = measured("fwd_q4096"), measured("fwd_q2048")
    read = {"a.yaml": [first], "b.yaml": [second]}
    monkeypatch.setattr(store, "read", lambda path: read[path.name])
    known = len(fresh.planner.records.records())
    for name in read:
        fresh.planner.load(Path(name), frozen=False)
    assert fresh.planner.records.records()[:2] == [second, first], "the last one first"
    assert len(fresh.planner.records.records()) == known + 2
