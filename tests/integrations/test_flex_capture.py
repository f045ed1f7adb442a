"""Calls that are taken out of what PyTorch compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.flex_on_cpu import calls, eager, given
from tunefa.compile.contract import CompileError
from tunefa.errors import TunefaError
from tunefa.integrations import flex_capture
from tunefa.integrations.flex_capture import captured


def test_the_tensors_are_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = given()
    forward, backward = calls(monkeypatch, *arguments)
    for call in (forward, backward):
        for mine, theirs in zip(call.qkv, arguments[:3], strict=True):
            assert mine.data_ptr() == theirs.data_ptr() and not theirs.requires_grad
        assert call.block_mask[2] is arguments[4].kv_num_blocks
    assert backward.arguments[5].shape == arguments[0].shape
    torch.testing.assert_close(backward.arguments[3], eager(forward)[0])


def test_pytorch_s_own_kernel_computes_a_forward_pass() -> None:
    (forward,) = captured(given(), None, enable_gqa=True)
    assert forward.op == "fwd" and not forward.qkv[0].requires_grad


def test_a_scale_and_other_options_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"ROWS_GUARANTEED_SAFE": True}
    for call in calls(monkeypatch, *given(), scale=0.5, kernel_options=options):
        assert call.scale == 0.5 and call.options["ROWS_GUARANTEED_SAFE"] is True


def test_a_captured_tensor_may_have_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, _, block_mask = given()
    bias = torch.rand(4, requires_grad=True)
    score_mod: Any = lambda s, b, h, i, j: s + bias[h]  # noqa: E731
    forward, backward = calls(monkeypatch, q, k, v, score_mod, block_mask)
    assert forward.op == "fwd" and len(backward.captured[0]) == 1


def test_an_error_says_nothing_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise CompileError("no")

    monkeypatch.setattr(flex_capture, "run_of", fails)
    with pytest.raises(TunefaError) as caught:
        captured(given(), False, enable_gqa=True)
    assert str(caught.value) == "PyTorch's own options do not compile for this call: no"


def test_what_is_not_compiled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with pytest.raises(TunefaError, match="compiled 0 of the 1 operators of FlexAttention"):
        captured(given(), False, enable_gqa=True)
