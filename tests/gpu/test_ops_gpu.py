"""`tunefa.flash_attention` on a CUDA device under autograd, compile, graphs and streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tunefa
from tests.support.op_calls import FORWARD, NOTHING_ELSE
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.runtime import cuda_attention
from tunefa.runtime.call import Call, Options, Tensors

CUDA: Any = torch.cuda  # parts of it have no types

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def inputs(
    shape: tuple[int, int, int, int, int], head_dim_v: int = 0, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, BSHD, of (heads, heads_kv, seqlen_q, seqlen_k, head_dim), needing gradients."""
    heads, heads_kv, seqlen_q, seqlen_k, head_dim = shape
    torch.manual_seed(0)

    def normal(heads: int, seqlen: int, dim: int) -> Tensor:
        made = torch.randn(2, seqlen, heads, dim, device="cuda", dtype=dtype)
        return made.requires_grad_()

    v = normal(heads_kv, seqlen_k, head_dim_v or head_dim)
    return normal(heads, seqlen_q, head_dim), normal(heads_kv, seqlen_k, head_dim), v


def exact(
    x: tuple[Tensor, Tensor, Tensor],
    options: Options,
    grad: Tensor,
    grad_lse: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """(dq, dk, dv) in fp64, by autograd through the reference."""
    leaves = [each.detach().double().requires_grad_() for each in x]
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
    scale = x[0].shape[3] ** -0.5
    mask = (options.window_left, options.window_right)
    inputs = AttentionInputs(q, k, v, options.causal, scale, *mask, options.softcap)
    out, lse = reference.attention(inputs)
    loss = (out.transpose(1, 2) * grad.double()).sum()
    if grad_lse is not None:
        loss = loss + (lse * grad_lse.double()).sum()
    return torch.autograd.grad(loss, leaves)


def close(made: tuple[Tensor, ...], right: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    limit = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}[dtype]
    for name, mine, theirs in zip("qkv", made, right, strict=True):
        error = float((mine.double() - theirs).norm() / theirs.norm())
        assert error <= limit, f"d{name} is off by {error:.1e}"


GRADIENTS = [
    # shape, head_dim_v, dtype, whether PyTorch's FlashAttention serves it
    ((8, 8, 256, 256, 64), 0, torch.bfloat16, True),
    ((8, 2, 200, 333, 128), 0, torch.float16, True),
    ((8, 1, 333, 200, 128), 0, torch.bfloat16, True),
    ((4, 4, 130, 130, 80), 0, torch.bfloat16, True),
    ((4, 2, 130, 130, 256), 0, torch.bfloat16, True),
    ((4, 2, 130, 130, 100), 0, torch.bfloat16, False),
    ((4, 2, 130, 130, 64), 128, torch.bfloat16, False),
    ((4, 2, 130, 99, 64), 0, torch.float32, False),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "head_dim_v", "dtype", "flash"), GRADIENTS)
def test_gradients(
    shape: tuple[int, int, int, int, int],
    head_dim_v: int,
    dtype: torch.dtype,
    flash: bool,
    causal: bool,
) -> None:
    q, k, v = x = inputs(shape, head_dim_v, dtype)
    options = Options(causal)
    call = Call.of(Tensors(q.detach(), k.detach(), v.detach()), options, None)
    if shape[4] <= 192 and torch.backends.cuda.is_flash_attention_available():
        assert cuda_attention.flash_serves(call.q, call.v, call.scale) == flash
    out = tunefa.flash_attention(q, k, v, causal=causal)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, x, grad)
    close(made, exact(x, options, grad), dtype)
    assert [each.stride() for each in made] == [each.stride() for each in x]


@pytest.mark.parametrize("window", [2, 7, 64, 100, 150, 2**40])
@pytest.mark.parametrize(("shape", "head_dim_v", "dtype", "flash"), GRADIENTS)
def test_gradients_with_a_window(
    shape: tuple[int, int, int, int, int],
    head_dim_v: int,
    dtype: torch.dtype,
    flash: bool,
    window: int,
) -> None:
    q, k, v = x = inputs(shape, head_dim_v, dtype)
    out = tunefa.flash_attention(q, k, v, causal=True, window=window)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, x, grad)
    close(made, exact(x, Options.of(True, window), grad), dtype)


@pytest.mark.parametrize("window", [(20, 10), (None, 30), (30, None), (100, 150), (1, 0)])
@pytest.mark.parametrize(("shape", "head_dim_v", "dtype", "flash"), GRADIENTS)
def test_gradients_with_a_window_of_two_sides(
    shape: tuple[int, int, int, int, int],
    head_dim_v: int,
    dtype: torch.dtype,
    flash: bool,
    window: tuple[int | None, int | None],
) -> None:
    q, k, v = x = inputs(shape, head_dim_v, dtype)
    out = tunefa.flash_attention(q, k, v, window=window)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, x, grad)
    close(made, exact(x, Options.of(False, window), grad), dtype)


@pytest.mark.parametrize("window", [None, 64])
def test_gradients_with_a_soft_cap(window: int | None) -> None:
    q, k, v = x = inputs((8, 4, 200, 260, 64), 64, torch.bfloat16)
    out = tunefa.flash_attention(q, k, v, causal=True, window=window, softcap=1.5)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, x, grad)
    close(made, exact(x, Options.of(True, window, softcap=1.5), grad), torch.bfloat16)


def test_gradients_of_rows_that_see_one_key() -> None:
    """Their softmax is 1 whatever q and k are: dv is grad, the others 0."""
    q, k, v = x = inputs((4, 4, 200, 200, 64))
    grad = torch.randn_like(q)
    out = tunefa.flash_attention(q, k, v, causal=True, window=1)
    dq, dk, dv = torch.autograd.grad(out, x, grad)
    torch.testing.assert_close(dv, grad, rtol=1e-2, atol=1e-2)
    assert max(float(dq.norm()), float(dk.norm())) <= 2e-2 * float(grad.norm())


def test_gradients_are_sdpa_s() -> None:
    q, k, v = x = inputs((8, 8, 512, 512, 128))
    out = tunefa.flash_attention(q, k, v, causal=True)
    heads = [each.transpose(1, 2) for each in x]
    right = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, x, grad)
    close(made, torch.autograd.grad(right.transpose(1, 2), x, grad), torch.bfloat16)


def test_gradients_in_the_other_layout() -> None:
    x = inputs((8, 2, 200, 333, 64))
    grad = torch.randn_like(x[0])
    right = exact(x, Options(True), grad)
    heads = [each.detach().transpose(1, 2).requires_grad_() for each in x]  # not contiguous
    out = tunefa.flash_attention(heads[0], heads[1], heads[2], causal=True, layout="bhsd")
    made = torch.autograd.grad(out, heads, grad.transpose(1, 2))
    assert [each.stride() for each in made] == [each.stride() for each in heads]
    close(tuple(each.transpose(1, 2) for each in made), right, torch.bfloat16)


def test_gradients_of_lse() -> None:
    q, k, v = x = inputs((8, 2, 200, 333, 64))
    out, lse = tunefa.flash_attention(q, k, v, causal=True, return_lse=True)
    grad, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    made = torch.autograd.grad((out, lse), x, (grad, grad_lse))
    close(made, exact(x, Options(True), grad, grad_lse), torch.bfloat16)


def test_ops_keep_pytorch_s_rules() -> None:
    q, k, v = inputs((4, 2, 64, 96, 64))
    torch.library.opcheck(
        FORWARD,
        (q, k, v, *NOTHING_ELSE, *Options.of(True, 20), None),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )  # fmt: skip


def test_compiles_into_one_graph() -> None:
    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tunefa.flash_attention(q * 2, k, v, causal=True) + 1

    q, k, v = x = inputs((8, 2, 256, 256, 64))
    compiled = torch.compile(block, fullgraph=True)
    out, right = compiled(q, k, v), block(q, k, v)
    torch.testing.assert_close(out, right, rtol=2e-2, atol=2e-2)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, x, grad)
    close(made, torch.autograd.grad(right, x, grad), torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v), right, rtol=2e-2, atol=2e-2)


def test_runs_on_the_current_stream() -> None:
    q, k, v = (each.detach() for each in inputs((8, 2, 256, 256, 64)))
    right = tunefa.flash_attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    side = CUDA.Stream()
    CUDA._sleep(2_000_000_000)  # about a second of the default stream
    with torch.cuda.stream(side):
        out = tunefa.flash_attention(q, k, v, causal=True)
    side.synchronize()
    assert not torch.cuda.current_stream().query(), "it waited for the default stream"
    assert torch.equal(out, right)
    torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_runs_on_the_tensors_own_device() -> None:
    q, k, v = (each.detach() for each in inputs((8, 2, 256, 256, 64)))
    right = tunefa.flash_attention(q, k, v, causal=True)
    q, k, v = (each.to("cuda:1") for each in (q, k, v))
    for _ in range(2):
        out = tunefa.flash_attention(q, k, v, causal=True)
        assert out.device == q.device and torch.cuda.current_device() == 0
        assert torch.equal(out.cpu(), right.cpu())
