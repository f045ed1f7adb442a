"""Calls of PyTorch's attention operators: the conventions of each, beside stand-ins for PyTorch's
own kernels."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tunefa.integrations import sdpa, sdpa_calls, sdpa_choice

aten = torch.ops.aten
CUDNN = aten._scaled_dot_product_cudnn_attention.default


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch, pytorch_calls: list[str]) -> Iterator[list[str]]:
    """Lets tunefa take all calls that it can; the operators that PyTorch computes."""
    monkeypatch.setattr(sdpa_choice, "is_taken", lambda chosen, device, rival: True)
    yield pytorch_calls


def both(run: Any, calls: list[str], count: int = 0) -> tuple[Any, Any]:
    """The results of PyTorch's stand-ins, and of tunefa, which leaves `count` calls to them."""
    right = run()
    overrides = sdpa.Overrides("CPU")
    calls.clear()
    try:
        found = run()
    finally:
        overrides.remove()
    assert len(calls) == count, calls
    return right, found


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, **named: Any) -> Any:
    sizes = None, None, q.shape[1], k.shape[1]
    return aten._flash_attention_forward.default(q, k, v, *sizes, 0.0, causal, False, **named)


def rows_first(q: int, k: int, heads: int = 4, heads_kv: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    sizes = ((q, heads), (k, heads_kv), (k, heads_kv))
    q_, k_, v_ = (torch.randn(2, rows, n, 16) for rows, n in sizes)
    return q_, k_, v_


SIDES = [
    {},
    {"scale": 0.3},
    {"window_size_left": 3, "window_size_right": 0},
    {"window_size_left": 3, "window_size_right": 2},
    {"window_size_left": -1, "window_size_right": 0},
]


@pytest.mark.parametrize("named", SIDES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_results_and_strides_are_those_of_flash_attention(
    taken: list[str], named: dict[str, Any], causal: bool
) -> None:
    if causal and "window_size_right" in named and named["window_size_right"] > 0:
        named = {**named, "window_size_right": -1}
    given = rows_first(7, 12)
    right, found = both(lambda: flash(*given, causal, **named), taken)
    torch.testing.assert_close(found[:2], right[:2])
    for one, other in zip(found, right, strict=True):
        assert one.dtype == other.dtype or one.numel() < 2
        assert one.stride() == other.stride()


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("sliced", [False, True])
def test_the_output_lies_in_memory_like_q(
    taken: list[str], axes: tuple[int, ...], sliced: bool
) -> None:
    shape, back = (2, 6, 4), sorted(range(3), key=axes.__getitem__)

    def made() -> Tensor:
        x = torch.randn(*(shape[axis] for axis in axes), 32 if sliced else 16)
        return x[..., :16].permute(*back, 3)

    given = made(), made(), made()
    right, found = both(lambda: flash(*given, True), taken)
    torch.testing.assert_close(found[0], right[0])
    assert found[0].stride() == torch.empty_like(given[0]).stride() == right[0].stride()


def test_rows_that_see_no_key_go_to_pytorch(taken: list[str]) -> None:
    given = rows_first(9, 5)
    both(lambda: flash(*given, True), taken, count=1)
    both(lambda: flash(*given, False), taken)


def test_packed_rows_that_see_no_key_have_pytorch_s_lse_and_zero_gradients(
    taken: list[str],
) -> None:
    q, k, v = (torch.randn(n, 2, 16) for n in (12, 8, 8))
    starts_q = torch.tensor([0, 7, 12], dtype=torch.int32)
    starts_k = torch.tensor([0, 3, 8], dtype=torch.int32)
    sizes = starts_q, starts_k, 7, 5

    def run() -> Any:
        out, lse, *_ = aten._flash_attention_forward.default(q, k, v, *sizes, 0.0, True, False)
        seed = torch.empty(2, dtype=torch.uint64)
        grads = aten._flash_attention_backward.default(
            q.cos(), q, k, v, out, lse, *sizes, 0.0, True, seed, seed
        )
        return out, lse, *grads

    right, found = both(run, taken)
    assert right[1].isposinf().any()
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("name", ["seqused_k", "alibi_slopes"])
def test_arguments_that_tunefa_has_not_go_to_pytorch(taken: list[str], name: str) -> None:
    given = rows_first(4, 4)
    named: dict[str, Any] = {name: torch.ones(2)}
    both(lambda: flash(*given, **named), taken, count=1)


def test_a_scale_that_kernels_do_not_take_goes_to_pytorch(taken: list[str]) -> None:
    given = rows_first(4, 4)
    both(lambda: flash(*given, scale=-1.0), taken, count=1)


def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None = None) -> Any:
    out, lse, _, _, rows, keys, seed, offset, _ = CUDNN(q, k, v, bias, True, 0.0, causal)
    grads = aten._scaled_dot_product_cudnn_attention_backward.default(
        *(out.cos(), q, k, v, out, lse, seed, offset),
        *(bias, None, None, rows, keys, 0.0, causal),
    )
    return out, lse, *grads


def heads_first(q: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    given = rows_first(q, k)
    return given[0].transpose(1, 2), given[1].transpose(1, 2), given[2].transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
def test_results_and_strides_are_those_of_cudnn(taken: list[str], causal: bool) -> None:
    q, k, v = heads_first(6, 6)
    for given in ((q, k, v), (q.contiguous(), k.contiguous(), v.contiguous())):
        right, found = both(functools.partial(cudnn, *given, causal), taken)
        torch.testing.assert_close(found, right)
        assert [x.stride() for x in found] == [x.stride() for x in right]


def test_cudnn_s_top_left_masks_and_biases_go_to_pytorch(taken: list[str]) -> None:
    both(lambda: cudnn(*heads_first(4, 6), True), taken, count=2)
    both(lambda: cudnn(*heads_first(4, 6), False), taken)
    bias = torch.zeros(2, 4, 6, 6)
    both(lambda: cudnn(*heads_first(6, 6), False, bias), taken, count=2)


def test_who_asks_for_cudnn_alone_gets_it(
    taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        both(lambda: cudnn(*heads_first(6, 6), True), taken, count=2)


def test_a_library_of_tunefa_s_may_call_the_operator_again(
    taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows_first(5, 5)
    inner = sdpa_choice.forward_plan

    class Library:
        """A plan that calls PyTorch's operator, as tunefa's library kernels do."""

        def __init__(self, plan: Any) -> None:
            self.chosen = plan.chosen

        def run(self, tensors: Any, scale: float | None) -> Any:
            out, lse, *_ = flash(*tensors[:3], scale=scale)
            return out, lse

    monkeypatch.setattr(sdpa_choice, "forward_plan", lambda *given: Library(inner(*given)))
    right, found = both(lambda: flash(*given), taken, count=1)
    torch.testing.assert_close(found[:2], right[:2])


def test_a_deterministic_program_gets_deterministic_gradients(
    taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    inner = sdpa_choice.backward_plan

    def seen(tensors: Any, options: Any, given: Any, rival: Any) -> Any:
        asked.append(options.deterministic)
        return inner(tensors, options, given, rival)

    monkeypatch.setattr(sdpa_choice, "backward_plan", seen)
    given = heads_first(6, 6)
    both(lambda: cudnn(*given, True), taken)
    torch.use_deterministic_algorithms(True)
    try:
        both(lambda: cudnn(*given, True), taken)
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == [False, True]


def test_last_choice_knows_of_calls_of_pytorch_s_operators(taken: list[str]) -> None:
    tunefa.flash_attention(*(torch.randn(1, 2, 2, 8, dtype=torch.float64),) * 3)
    before = tunefa.last_choice()
    given = rows_first(5, 5)
    both(lambda: flash(*given), taken)
    found = tunefa.last_choice()
    assert found is not None and before is not None and found.kernel == "pytorch"


def test_the_default_scale_as_pytorch_rounds_it_is_the_default() -> None:
    for head_dim in range(8, 257, 8):
        q = torch.empty(1, 1, 1, head_dim)
        assert sdpa_calls._usual(1.0 / head_dim**0.5, q) is None
        assert sdpa_calls._usual(0.1, q) == 0.1
