"""The check of FlexAttention's results: what is exact, and what is found wrong."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import fx
from torch.nn.attention.flex_attention import create_block_mask

from tests.support.flex_functions import alibi, documents
from tests.support.flex_on_cpu import HEADS, calls, eager, given, tensors
from tunefa.errors import TunefaError
from tunefa.integrations import flex_check
from tunefa.integrations.flex_calls import FlexCall
from tunefa.integrations.flex_check import Truth, exact
from tunefa.integrations.flex_traced import Outputs


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[FlexCall]:
    return calls(monkeypatch)


def test_exact_results_are_those_of_the_definition(
    both: list[FlexCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each KV head of each batch, also where rows are computed in parts."""
    for chunk_bytes in (flex_check._CHUNK_BYTES, 2**20):
        monkeypatch.setattr(flex_check, "_CHUNK_BYTES", chunk_bytes)
        for call in both:
            right = eager(call)
            for batch, head_kv in [(0, 0), (1, 1), (0, 1)]:
                found = exact(call, batch, head_kv)
                heads = slice(2 * head_kv, 2 * head_kv + 2)
                own = [right[0][batch, heads]]
                own += [each[batch, head_kv, None] for each in right[1:] if call.op == "bwd"]
                for mine, theirs in zip(found, own, strict=True):
                    torch.testing.assert_close(mine, theirs.double(), rtol=1e-4, atol=1e-4)


def test_full_and_partial_blocks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask without a function has blocks alone, and a row that sees no key is 0."""
    mask = documents((200, 56))
    blocks = create_block_mask(mask, None, None, 256, 256, device="cpu", BLOCK_SIZE=64)
    assert blocks.full_kv_num_blocks is not None and blocks.full_kv_num_blocks.sum() > 0
    forward, _ = calls(monkeypatch, *tensors(), alibi(HEADS), blocks)
    torch.testing.assert_close(
        exact(forward, 1, 0)[0], eager(forward)[0][1, :2].double(), rtol=1e-4, atol=1e-4
    )
    blind = [each if each is None else torch.zeros_like(each) for each in forward.block_mask[2:5:2]]
    masked = (*forward.block_mask[:2], blind[0], forward.block_mask[3], blind[1])
    arguments = (*forward.arguments[:4], (*masked, *forward.block_mask[5:]), *forward.arguments[5:])
    assert not exact(FlexCall("fwd", arguments), 0, 0)[0].any()


def test_right_results_pass(both: list[FlexCall]) -> None:
    for call in both:
        judged = Truth(call, partial(eager, call)).judge(partial(eager, call))
        assert judged.reason == "" and 0 < judged.error < 1e-4 and judged.is_steady


def changed(results: Outputs, place: int, where: tuple[int, ...], value: float) -> Outputs:
    made = [each.clone() for each in results]
    made[place][where] = value
    return tuple(made)


@pytest.mark.parametrize("where", [(0, 0, 5), (0, 2, 7), (1, 1, 130)], ids=str)
@pytest.mark.parametrize("value", [9.0, float("nan")])
def test_a_wrong_row_is_found(
    both: list[FlexCall], where: tuple[int, int, int], value: float
) -> None:
    """In heads that are computed exactly, and in others."""
    for call in both:
        right = eager(call)
        judged = Truth(call, partial(eager, call)).judge(partial(changed, right, 0, where, value))
        assert (judged.reason and judged.is_steady) or value != value


def test_every_gradient_is_compared(both: list[FlexCall]) -> None:
    right = eager(both[1])
    truth = Truth(both[1], lambda: right)
    for place, name in enumerate(("dq", "dk", "dv")):
        judged = truth.judge(partial(changed, right, place, (0, 1, 9), 5.0))
        assert judged.reason.startswith(f"{name}: ") or "relative error" in judged.reason


def test_results_that_change_are_unsteady(both: list[FlexCall]) -> None:
    right = eager(both[0])
    truth, launches = Truth(both[0], lambda: right), iter((0.0, 1e-3))
    judged = truth.judge(lambda: changed(right, 0, (0, 0, 0), next(launches)))
    assert not judged.is_steady and "two launches differ" in judged.reason


def test_a_mask_whose_blocks_contradict_its_function_is_an_error(
    both: list[FlexCall],
) -> None:
    with pytest.raises(TunefaError, match=r"off by .* from the score and mask function"):
        Truth(both[0], lambda: tuple(0.5 * each for each in eager(both[0])))


def test_other_heads_and_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths that no block divides."""
    for call in calls(monkeypatch, *given(seqlen=200)):
        judged = Truth(call, partial(eager, call)).judge(partial(eager, call))
        assert not judged.reason


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_conversions_are_not_computed_one_by_one() -> None:
    """Functions that convert their score, as PyTorch traces them for Inductor."""
    graph = fx.Graph()
    score, *_ = [graph.placeholder(name) for name in "sbhij"]
    convert = torch.ops.prims.convert_element_type.default
    graph.output(graph.call_function(convert, (score, torch.float16)))
    function = fx.GraphModule({}, graph)
    scores, index = torch.randn(2, 3, 5, dtype=torch.double), torch.arange(5)
    found = flex_check._mapped(function, True, 0)(scores, index[0], index[:2], index[:3], index)
    assert torch.equal(found, scores.half())
    assert [node.target for node in function.graph.nodes].count(convert) == 1
