"""tunefa/runtime/cuda_attention.py: PyTorch's FlashAttention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.op_calls import FORWARD, NOTHING_ELSE, close, inputs, sdpa
from tunefa.measure import gradients, reference
from tunefa.runtime import cuda_attention
from tunefa.runtime.call import Call, Options, Tensors, Window


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("shape", [(4, 2, 16, 16, 64, 64), (4, 1, 24, 16, 64, 64)])
@pytest.mark.parametrize("window", [None, 8, (8, 4), (None, 4), (8, None)])
def test_flash_gradients_call_pytorch_s_op_as_it_is(
    shape: tuple[int, ...], layout: str, window: Window
) -> None:
    """On meta tensors: the arguments fit the installed PyTorch, the shapes come out right."""
    q, k, v = (x.detach().bfloat16().to("meta") for x in inputs(shape, layout))
    causal = not isinstance(window, tuple)
    call = Call.of(Tensors(q, k, v), Options.of(causal, window, layout), None)
    out = torch.empty(call.out_shape, device="meta", dtype=torch.bfloat16)
    grads = cuda_attention.gradients(call, out, call.new_lse(), torch.empty_like(out))
    assert [x.shape for x in grads] == [x.shape for x in (call.q, call.k, call.v)]


@pytest.mark.parametrize("seqlens", [(16, 16), (24, 16), (16, 24)])
@pytest.mark.parametrize("window", [None, 8])
def test_flash_attention_calls_pytorch_s_op_as_it_is(
    seqlens: tuple[int, int], window: Window
) -> None:
    """On meta tensors: the arguments fit the installed PyTorch, the shapes come out right."""
    x = inputs((4, 2, *seqlens, 64, 64))
    q, k, v = (each.detach().bfloat16().to("meta") for each in x)
    call = Call.of(Tensors(q, k, v), Options.of(True, window), None)
    out, lse = cuda_attention.attention(call)
    assert (out.shape, lse.shape) == (call.out_shape, call.lse_shape)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("window", [None, 3])
def test_flash_attention_leaves_rows_without_a_key_outside(
    monkeypatch: pytest.MonkeyPatch, window: Window
) -> None:
    """The formula stands in for PyTorch's op, which is told of the rows that see a key only."""
    q, k, v = (x.detach() for x in inputs((4, 2, 12, 7, 8, 8)))
    call = Call.of(Tensors(q, k, v), Options.of(True, window), None)

    def instead(
        q: Tensor, k: Tensor, v: Tensor, *rest: Any,
        scale: float, window_size_left: int | None, window_size_right: int | None,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert rest == (None, None, 7, 7, 0.0, True, False) and window_size_right == 0
        assert window_size_left == (None if window is None else 2)
        made, lse = reference.attention(Call.of(Tensors(q, k, v), call.options, scale))
        assert bool(lse.isfinite().all())
        return made.transpose(1, 2), lse, None, None, None

    class Packet:
        default = staticmethod(instead)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", Packet)
    torch.testing.assert_close(cuda_attention.attention(call), reference.attention(call))


def test_flash_attention_reads_16_bytes_at_a_time() -> None:
    x = torch.randn(2, 16, 4, 72, dtype=torch.bfloat16)
    for read in (x, x[:, :, :2], x[..., 8:]):
        assert cuda_attention._readable(read) is read
    for copied in (x[..., 1:65], x[..., :65], x.flatten()[1:-71].view(-1, 72), x.mT):
        made = cuda_attention._readable(copied)
        assert made.data_ptr() % 16 == 0 and torch.equal(made, copied)


def test_flash_gradients_only_where_it_means_the_same() -> None:
    few, many = (
        tuple(x.detach() for x in inputs((4, 2, *seqlens, 8, 8))) for seqlens in ((7, 12), (12, 7))
    )

    def served(tensors: tuple[Tensor, ...], causal: bool, window: Window) -> bool:
        q, k, v = tensors
        return cuda_attention.takes(Call.of(Tensors(q, k, v), Options.of(causal, window), None))

    for window in ((3, None), (None, 9), (3, 2)):
        assert served(few, False, window) and not served(many, False, window)
    assert served(many, False, None) and served(many, True, 3) and served(many, False, (3, 0))
    q, k, v = few
    assert not cuda_attention.takes(Call.of(Tensors(q, k, v), Options(softcap=5.0), None))


@pytest.mark.parametrize(
    ("options", "serves"),
    [
        ({"causal": True}, True),
        ({"window": (3, 2)}, True),
        ({"window": (3, 2), "softcap": 1.5}, False),
        ({"causal": True, "softcap": 1.5}, False),
    ],
)
def test_flash_computes_only_what_it_knows(
    flash_calls: list[Call], options: dict[str, Any], serves: bool
) -> None:
    """The device and the tensors are such as it serves; a window also by its lengths."""
    for seqlens, knows in (((7, 12), True), ((12, 7), "window" not in options)):
        flash_calls.clear()
        q, k, v = inputs((4, 2, *seqlens, 8, 8))
        call: Any = tunefa.flash_attention
        call(q, k, v, **options).sum().backward()
        assert len(flash_calls) == 2 * (serves and knows)


@pytest.mark.parametrize(
    ("window", "sides"),
    [(None, (None, 0)), (3, (2, 0)), (2**40, (6, 0)), ((3, None), (3, 0)), ((2, 4), (2, 0))],
)
def test_flash_gradients_leave_rows_without_a_key_outside(
    monkeypatch: pytest.MonkeyPatch, window: Window, sides: tuple[int | None, int]
) -> None:
    """The formula stands in for PyTorch's op, and must not see an lse of -inf."""
    q, k, v = (x.detach() for x in inputs((4, 2, 12, 7, 8, 8)))
    options = Options.of(True, window)
    call = Call.of(Tensors(q, k, v), options, None)
    out, lse = FORWARD(q, k, v, *NOTHING_ELSE, *options, None)
    grad = torch.randn_like(out)

    def instead(
        grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any,
        scale: float, window_size_left: int | None, window_size_right: int | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        assert bool(lse.isfinite().all()) and lse.is_contiguous()
        assert rest[:6] == (None, None, 7, 7, 0.0, True)
        assert (window_size_left, window_size_right) == sides
        inner = Call.of(Tensors(q, k, v), options, scale)
        made = gradients.gradients(inner, out.transpose(1, 2), lse, grad_out.transpose(1, 2))
        return tuple(x.transpose(1, 2) for x in made)

    class Packet:
        default = staticmethod(instead)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", Packet)
    made = cuda_attention.gradients(call, out.transpose(1, 2), lse, grad.transpose(1, 2))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    right = torch.autograd.grad(sdpa(q, k, v, True, window), (q, k, v), grad)
    close(tuple(x.transpose(1, 2) for x in made), right)
