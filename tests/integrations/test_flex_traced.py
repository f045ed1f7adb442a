"""FlexAttention's calls without their tensors: compiled for the CPU, and lowered for an H200."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.flex_on_cpu import calls, eager, lowered, on_cuda
from tunefa.compile.contract import CompileError
from tunefa.compile.workers import Workers
from tunefa.integrations import flex_traced
from tunefa.integrations.flex_calls import FlexCall
from tunefa.integrations.flex_traced import Layout, TracedCall, replaced, run_of, tensors_of

CHOSEN = {
    "fwd": {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2},
    "bwd": {
        **{"BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32},
        **{"num_warps": 4, "num_stages": 3},
    },
}


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[FlexCall]:
    return calls(monkeypatch)


def test_options_reach_pytorch_s_template(both: list[FlexCall]) -> None:
    for call in both:
        traced = pickle.loads(pickle.dumps(on_cuda(call)))
        for more in ({}, {"PRESCALE_QK": True}):
            asked = {**CHOSEN[call.op], **more}
            given = lowered(traced, asked)
            assert {name: given[name] for name in asked} == asked
            assert given["SPARSE_Q_BLOCK_SIZE"] == 128 and given["GQA_SHARED_HEADS"] == 2


def test_options_that_do_not_fit_the_block_mask_do_not_compile(both: list[FlexCall]) -> None:
    traced = on_cuda(both[0])
    with pytest.raises(CompileError, match="divisible by BLOCK_M and BLOCK_N"):
        lowered(traced, {**CHOSEN["fwd"], "BLOCK_M": 256})


def test_a_program_that_another_process_compiled_computes_the_call(
    both: list[FlexCall], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forward = both[0]
    task: Any = (TracedCall.of(forward), {}, str(tmp_path))
    with Workers(1) as workers:
        assert workers.submit(flex_traced.compile_here, task, 200.0).result() is None
    left = set(tmp_path.rglob("*.so"))
    assert left, list(tmp_path.iterdir())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (out,) = run_of(forward, {})()
    torch.testing.assert_close(out, eager(forward)[0], rtol=1e-4, atol=1e-4)
    assert set(tmp_path.rglob("*.so")) == left


def test_a_process_says_why_a_program_does_not_compile(
    both: list[FlexCall], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    traced = on_cuda(both[0])  # this machine has none
    why = flex_traced.compile_here(traced, {}, str(tmp_path))
    assert why is not None and "Error" in why and "\n" not in why and len(why) <= 300


def test_layouts_stand_in_the_places_of_tensors(both: list[FlexCall]) -> None:
    for call in both:
        found = tensors_of(call)
        layouts: list[Any] = []
        replaced(replaced(call.arguments, torch.Tensor, Layout.of), Layout, layouts.append)
        assert layouts == [Layout.of(each) for each in found] and len(found) > 8
        assert found[0].data_ptr() == call.qkv[0].data_ptr()


def test_an_error_has_a_first_line() -> None:
    assert flex_traced.first_words(ValueError("\n  one\ntwo")) == "ValueError: one"
    assert flex_traced.first_words(KeyError()) == "KeyError: "
