"""Calls of FlexAttention: what is read of them, and when two functions are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn.attention.flex_attention import create_block_mask

from tests.support import flex_on_cpu
from tests.support.flex_functions import alibi, documents
from tests.support.flex_on_cpu import HEADS, calls, given, tensors
from tunefa.integrations import flex_calls
from tunefa.integrations.flex_calls import FlexCall, function_hash, workload_of
from tunefa.spec.workload import Workload


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[FlexCall]:
    return calls(monkeypatch)


def hashed(monkeypatch: pytest.MonkeyPatch, score_mod: Any, mask_mod: Any = None) -> list[str]:
    """The hashes of the functions in the forward and the backward pass."""
    mask = mask_mod or documents((64, 192))
    block_mask = create_block_mask(mask, None, None, 256, 256, device="cpu")
    found = calls(monkeypatch, *tensors(), score_mod, block_mask)
    return [function_hash(call.score, call.mask) for call in found]


def test_a_forward_and_a_backward_pass_are_read(both: list[FlexCall]) -> None:
    assert [call.op for call in both] == ["fwd", "bwd"]
    for call in both:
        assert str(workload_of(call)) == f"{call.op}_b2_h4_kv2_q256_k256_d64_fp32_full"
        assert call.block_size == (128, 128) and call.scale == 64**-0.5
        assert isinstance(call.score, fx.GraphModule) and isinstance(call.mask, fx.GraphModule)
        (slopes,), (number,) = call.captured
        assert slopes.shape == (HEADS,) and number.shape == (256,)
        assert call.options["PRESCALE_QK"] is False and call.chosen_by_user == []
        assert flex_calls.why_not(call) is None
    assert both[1].results == ("dq", "dk", "dv")


def test_other_operators_are_no_calls(both: list[FlexCall]) -> None:
    assert FlexCall.of(torch.ops.aten.add.Tensor, ()) is None
    assert FlexCall.of(torch.ops.higher_order.flex_attention, both[0].arguments) == both[0]


def test_options_stand_beside_the_call_s_own(both: list[FlexCall]) -> None:
    for call in both:
        changed = call.with_options({"num_warps": 8, "bwd_BLOCK_M1": 32, "fwd_BLOCK_M": 64})
        assert changed.options == {
            **call.options,
            **{"num_warps": 8, "bwd_BLOCK_M1": 32, "fwd_BLOCK_M": 64},
        }
        own = {"fwd": "BLOCK_M", "bwd": "BLOCK_M1"}[call.op]
        assert changed.chosen_by_user == ["num_warps", own]
        assert changed.mask is call.mask and "num_warps" not in call.options


def test_equal_functions_have_equal_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they are defined, whatever their names are, and for other captured values."""

    def same(s: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return s - other[h] * (q_idx - kv_idx)

    other = torch.rand(HEADS)
    first = hashed(monkeypatch, alibi(HEADS))
    assert len(set(first)) == 1, "forward and backward pass"
    assert hashed(monkeypatch, same) == first
    assert hashed(monkeypatch, same, documents((100, 56, 100))) == first


@pytest.mark.parametrize(
    "score_mod",
    [
        None,
        lambda s, b, h, i, j: s * 2.0,
        lambda s, b, h, i, j: s * 3.0,
        lambda s, b, h, i, j: torch.tanh(s / 2.0) * 2.0,
        lambda s, b, h, i, j: s + (i - j),
        lambda s, b, h, i, j: s + (j - i),
    ],
)
def test_other_functions_have_other_hashes(
    monkeypatch: pytest.MonkeyPatch, score_mod: Callable[..., Tensor] | None, seen: set[str]
) -> None:
    (own,) = set(hashed(monkeypatch, score_mod))
    assert own not in seen
    seen.add(own)


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """The hashes so far."""
    return set()


def test_masks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def window(width: int) -> Callable[..., Tensor]:
        return lambda b, h, i, j: (i >= j) & (i - j < width)

    hashes = [hashed(monkeypatch, None, window(width))[0] for width in (64, 96, 64)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_the_identity_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, score_mod, block_mask = given()
    for function, right in [(None, True), (score_mod, False), (lambda s, *_: s * 1.5, False)]:
        for call in calls(monkeypatch, q, k, v, function, block_mask):
            assert flex_calls.is_identity(call.score) == right


def test_calls_that_cannot_be_tuned(both: list[FlexCall], monkeypatch: pytest.MonkeyPatch) -> None:
    forward = both[0]
    flash = forward.with_options({"BACKEND": "FLASH"})
    assert flex_calls.why_not(flash) == "its BACKEND is FLASH"
    few = FlexCall("fwd", (forward.qkv[0][:, :, :64], *forward.arguments[1:]))
    assert "fewer than 128 query rows" in str(flex_calls.why_not(few))
    assert flex_calls.why_not(few.with_options({"FORCE_USE_FLEX_ATTENTION": True})) is None
    q, k, v = forward.qkv
    for changed in [(q.double(), k.double(), v.double()), (q, k[:1], v[:1]), (q, k.half(), v)]:
        other = FlexCall("fwd", (*changed, *forward.arguments[3:]))
        assert workload_of(other) is None and "no workload" in str(flex_calls.why_not(other))


def test_calls_are_found_in_a_graph(both: list[FlexCall]) -> None:
    forward, graph = both[0], fx.Graph()
    q, k, v = (graph.placeholder(name) for name in "qkv")
    for node, tensor in zip((q, k, v), forward.qkv, strict=True):
        node.meta["val"] = tensor
    score, mask = graph.get_attr("score"), graph.get_attr("mask")
    block_mask = (*forward.block_mask[:-1], mask)
    arguments = (q, k, v, score, block_mask, *forward.arguments[5:])
    made = graph.call_function(flex_calls.OPERATORS["fwd"], arguments)
    graph.output(made)
    module = fx.GraphModule({"score": forward.score, "mask": forward.mask}, graph)
    ((node, call),) = flex_calls.calls_in(module.graph)
    assert node.target is flex_calls.OPERATORS["fwd"] and call.score is not None
    assert workload_of(call) == Workload.parse("fwd_b2_h4_kv2_q256_k256_d64_fp32_full")
    assert function_hash(call.score, call.mask) == function_hash(forward.score, forward.mask)


def test_the_visible_share_is_that_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, score_mod, block_mask = flex_on_cpu.given(seqlen=512)
    for call in calls(monkeypatch, q, k, v, score_mod, block_mask):
        assert flex_calls.visible(call) == pytest.approx(1 - block_mask.sparsity() / 100)
    for call in calls(monkeypatch, q, k, v, None, None):
        assert flex_calls.visible(call) == 1.0
