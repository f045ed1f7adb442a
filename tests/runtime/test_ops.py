"""tunefa/runtime/ops.py: the op under autograd and torch.compile."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import tunefa
from tests.support.op_calls import FORWARD, NOTHING_ELSE, close, inputs, sdpa
from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.runtime import ops
from tunefa.runtime.call import Options, Tensors, Window

BACKWARD = torch.ops.tunefa.flash_attention_backward.default


BOTH = (False, True)
SHAPES = [  # heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v
    (4, 4, 9, 9, 8, 8),
    (4, 2, 7, 12, 8, 16),
    (4, 1, 12, 7, 8, 8),
]


@pytest.mark.parametrize(
    ("causal", "window"),
    [
        *((False, None), (True, None), (True, 1), (True, 3), (True, 99), (True, (3, None))),
        *((False, (2, 1)), (False, (None, 2)), (False, (0, 0)), (False, (4, None))),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_sdpa_s(shape: tuple[int, ...], causal: bool, window: Window) -> None:
    q, k, v = inputs(shape)
    out = tunefa.flash_attention(q, k, v, causal=causal, window=window)
    right = sdpa(q, k, v, causal, window)
    torch.testing.assert_close(out, right)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, (q, k, v), grad)
    close(made, torch.autograd.grad(right, (q, k, v), grad))
    assert [x.stride() for x in made] == [x.stride() for x in (q, k, v)]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("softcap", [None, 0.8])
def test_gradcheck_of_out_and_lse(layout: str, softcap: float | None) -> None:
    q, k, v = inputs((4, 2, 3, 5, 4, 6), layout, torch.float64)

    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return ops.flash_attention(Tensors(q, k, v), Options.of(True, 2, layout, softcap), None)

    assert torch.autograd.gradcheck(both, (q, k, v))


def e4m3_inputs() -> tuple[list[Tensor], dict[str, Any]]:
    """((q, k, v), descales by their arguments' names), two query heads on each KV head."""
    x = [torch.randn(2, n, heads, 16) for n, heads in ((9, 4), (12, 2), (12, 2))]
    scales = {f"{name}_descale": torch.rand(2, 2) + 0.5 for name in "qkv"}
    return [each.to(torch.float8_e4m3fn) for each in x], scales


@pytest.mark.parametrize("mask", [{"causal": True}, {"window": (3, 2), "softcap": 1.5}])
def test_e4m3_is_attention_of_what_it_stands_for(mask: dict[str, Any]) -> None:
    attention: Any = tunefa.flash_attention  # its overloads take no dictionaries
    x, scales = e4m3_inputs()
    made = attention(*x, return_lse=True, **mask, **scales)
    plain = [
        each.double() * scale.repeat_interleave(each.shape[2] // 2, 1)[:, None, :, None]
        for each, scale in zip(x, scales.values(), strict=True)
    ]
    right = attention(*plain, return_lse=True, **mask)
    assert made[0].dtype == torch.bfloat16
    torch.testing.assert_close(made[0].double(), right[0], rtol=2**-8, atol=1e-5)
    torch.testing.assert_close(made[1].double(), right[1], rtol=0, atol=1e-5)
    ones = tunefa.flash_attention(*x, q_descale=torch.ones(2, 2))
    assert torch.equal(ones, tunefa.flash_attention(*x))


def test_e4m3_keeps_pytorch_s_rules() -> None:
    x, scales = e4m3_inputs()
    op, tests = torch.ops.tunefa.flash_attention.default, ("test_faketensor",)
    settings = (*Options(causal=True), None)
    dense = (None, None)
    torch.library.opcheck(op, (*x, *dense, *scales.values(), *settings), test_utils=tests)
    torch.library.opcheck(op, (*x, *dense, *[None] * 3, *settings), test_utils=tests)
    torch.compiler.reset()
    compiled: Any = torch.compile(tunefa.flash_attention, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*x, **scales), tunefa.flash_attention(*x, **scales))


def test_e4m3_has_no_gradient() -> None:
    x, scales = e4m3_inputs()
    scales["v_descale"].requires_grad_()
    with pytest.raises(TunefaError, match="has no gradient: train in bf16"):
        tunefa.flash_attention(*x, **scales).sum().backward()


def test_the_gradient_of_lse_alone() -> None:
    q, k, v = inputs((4, 2, 3, 5, 8, 8))
    _, lse = tunefa.flash_attention(q, k, v, return_lse=True)
    made = torch.autograd.grad(lse.sum(), (q, k), allow_unused=True)
    scores = q.transpose(1, 2) @ k.transpose(1, 2).repeat_interleave(2, 1).transpose(2, 3) * 8**-0.5
    close(made, torch.autograd.grad(scores.logsumexp(-1).sum(), (q, k)))


def test_low_precision_gradients_keep_their_dtype() -> None:
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in inputs(SHAPES[1]))
    grads = torch.autograd.grad(tunefa.flash_attention(q, k, v, causal=True).sum(), (q, k, v))
    assert {grad.dtype for grad in grads} == {torch.bfloat16}


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    """It lets a backward pass read the saved tensors only once."""
    leaves = [torch.randn(2, 33, 4, 32).requires_grad_() for _ in range(3)]

    def loss(*x: Tensor) -> Tensor:
        return tunefa.flash_attention(*x, causal=True).square().sum()

    right = torch.autograd.grad(loss(*leaves), leaves)
    again: Any = checkpoint(loss, *leaves, use_reentrant=False)
    for mine, theirs in zip(torch.autograd.grad(again, leaves), right, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_only_what_needs_a_gradient_goes_through_the_dispatcher() -> None:
    q, k, v = inputs(SHAPES[0])
    assert tunefa.flash_attention(q.detach(), k.detach(), v).requires_grad
    with torch.no_grad():
        assert not tunefa.flash_attention(q, k, v).requires_grad
    with torch.inference_mode():
        assert tunefa.flash_attention(q, k, v).is_inference()


@pytest.mark.parametrize(
    ("shape", "layout", "mask", "scale"),
    [
        (SHAPES[0], "bhsd", Options(False, 2, 2, softcap=1.5), None),
        (SHAPES[1], "bshd", Options(True), None),
        (SHAPES[1], "bshd", Options(False), 0.2),
        (SHAPES[2], "bhsd", Options(True, 2), None),
    ],
)
def test_ops_keep_pytorch_s_rules(
    shape: tuple[int, ...], layout: str, mask: Options, scale: float | None
) -> None:
    options = (*mask._replace(layout=layout), scale)
    q, k, v = inputs(shape, layout)
    torch.library.opcheck(FORWARD, (q, k, v, *NOTHING_ELSE, *options))
    q, k, v = (x.detach() for x in (q, k, v))
    out, lse = FORWARD(q, k, v, *NOTHING_ELSE, *options)
    for grad_lse in (None, torch.randn_like(lse)):
        arguments = (torch.randn_like(out), grad_lse, out, lse, q, k, v, *NOTHING_ELSE, *options)
        torch.library.opcheck(BACKWARD, arguments)


@pytest.mark.parametrize(
    ("options", "return_lse", "dynamic"),
    [
        *(({"causal": True}, dynamic, dynamic) for dynamic in BOTH),
        ({"causal": True, "window": 5}, True, False),
        ({"window": (5, 2), "softcap": 1.5}, True, True),
        ({"window": (None, 2)}, False, True),
    ],
)
def test_compiles_into_one_graph(options: dict[str, Any], return_lse: bool, dynamic: bool) -> None:

    def block(q: Tensor, k: Tensor, v: Tensor) -> Any:
        if not return_lse:
            return tunefa.flash_attention(q * 2, k, v, **options) + 1
        out, lse = tunefa.flash_attention(q * 2, k, v, **options, return_lse=True)
        return out + lse.mT[..., None]

    torch.compiler.reset()  # the other cases compiled the same code
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in SHAPES[:2]:
        q, k, v = inputs(shape)
        out, right = compiled(q, k, v), block(q, k, v)
        torch.testing.assert_close(out, right)
        grad = torch.randn_like(out)
        made = torch.autograd.grad(out, (q, k, v), grad)
        close(made, torch.autograd.grad(right, (q, k, v), grad))
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, k, v), right)


def test_the_first_call_may_be_inside_a_compiled_function() -> None:
    code = """
import torch, tunefa
def block(q):
    return tunefa.flash_attention(q, q, q, causal=True)
q = torch.randn(1, 5, 2, 16, requires_grad=True)
out = torch.compile(block, fullgraph=True, backend="aot_eager")(q)
out.sum().backward()
assert torch.equal(out, block(q)) and q.grad.shape == q.shape
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_mistakes_are_named_under_compile_too() -> None:
    torch.compiler.reset()  # of what others compiled; after eight of a function it gives up
    compiled = torch.compile(tunefa.flash_attention, fullgraph=True, backend="eager")
    q, k, v = inputs(SHAPES[0])
    with pytest.raises(Exception, match="q has 4 heads, which is not a multiple of the 3"):
        compiled(q, k[:, :, :3], v[:, :, :3])
    with pytest.raises(Exception, match="window is 3 and causal is False"):
        compiled(q, k, v, window=3)
    with pytest.raises(TunefaError, match="q has 4 heads, which is not a multiple of the 3"):
        FORWARD(q, k[:, :, :3], v[:, :, :3], *NOTHING_ELSE, *Options(), None)
