from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tunefa
from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.measure import reference
from tunefa.runtime import ops
from tunefa.runtime.call import Call, Options, Tensors, Window

FORWARD = torch.ops.tunefa.flash_attention.default
BACKWARD = torch.ops.tunefa.flash_attention_backward.default
NOTHING_ELSE = (None,) * 5
"""Neither cu_seqlens nor descales."""

SHAPES = [  # heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v
    (4, 4, 9, 9, 8, 8),
    (4, 2, 7, 12, 8, 16),
    (4, 1, 12, 7, 8, 8),
]


def inputs(
    shape: tuple[int, ...], layout: str = "bshd", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v = shape
    generator = torch.Generator().manual_seed(1)

    def normal(heads: int, seqlen: int, dim: int) -> Tensor:
        x = torch.randn(2, seqlen, heads, dim, generator=generator, dtype=dtype)
        return (x if layout == "bshd" else x.transpose(1, 2)).requires_grad_()

    q = normal(heads, seqlen_q, head_dim)
    return q, normal(heads_kv, seqlen_k, head_dim), normal(heads_kv, seqlen_k, head_dim_v)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: Window = None) -> Tensor:
    """PyTorch's own, of BSHD tensors; a row that sees no key, NaN there, is 0 here."""
    left, right = window if isinstance(window, tuple) else ((window or k.shape[1]) - 1, None)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    diagonal = k.shape[2] - q.shape[2]
    if causal or right is not None:
        seen = seen.tril(diagonal + (0 if causal else right or 0))
    if left is not None:
        seen = seen.triu(diagonal - left)
    some = seen.any(1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | ~some[:, None], enable_gqa=True)
    return (out * some[:, None]).transpose(1, 2)


def close(made: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    for mine, theirs in zip(made, right, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


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


def test_only_what_needs_a_gradient_goes_through_the_dispatcher() -> None:
    q, k, v = inputs(SHAPES[0])
    assert tunefa.flash_attention(q.detach(), k.detach(), v).requires_grad
    with torch.no_grad():
        assert not tunefa.flash_attention(q, k, v).requires_grad
    with torch.inference_mode():
        assert tunefa.flash_attention(q, k, v).is_inference()


def test_a_gradient_of_the_gradient_is_refused() -> None:
    q, k, v = inputs(SHAPES[0])
    (grad,) = torch.autograd.grad(tunefa.flash_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(grad.sum(), q)


@pytest.mark.parametrize(
    ("mask", "scale"),
    [
        (Options(True), None),
        (Options(True, 2), None),
        (Options(False, 2, 2, softcap=1.5), None),
        (Options(False), 0.2),
    ],
)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("shape", SHAPES)
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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"causal": True, "window": 5},
        {"window": (5, 2), "softcap": 1.5},
        {"window": (None, 2)},
    ],
)
def test_compiles_into_one_graph(dynamic: bool, return_lse: bool, options: dict[str, Any]) -> None:

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


# --------------------------------------------------------- through PyTorch's FlashAttention


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
    grads = ops._flash_gradients(call, out, call.new_lse(), torch.empty_like(out))
    assert [x.shape for x in grads] == [x.shape for x in (call.q, call.k, call.v)]


def test_flash_gradients_only_where_it_means_the_same() -> None:
    few, many = (
        tuple(x.detach() for x in inputs((4, 2, *seqlens, 8, 8))) for seqlens in ((7, 12), (12, 7))
    )

    def served(tensors: tuple[Tensor, ...], causal: bool, window: Window) -> bool:
        q, k, v = tensors
        return ops._flash_takes(Call.of(Tensors(q, k, v), Options.of(causal, window), None))

    for window in ((3, None), (None, 9), (3, 2)):
        assert served(few, False, window) and not served(many, False, window)
    assert served(many, False, None) and served(many, True, 3) and served(many, False, (3, 0))
    q, k, v = few
    assert not ops._flash_takes(Call.of(Tensors(q, k, v), Options(softcap=5.0), None))


@pytest.mark.parametrize(
    ("options", "serves"),
    [
        ({"causal": True}, True),
        ({"window": (3, 2)}, True),
        ({"window": (3, 2), "softcap": 1.5}, False),
        ({"causal": True, "softcap": 1.5}, False),
    ],
)
def test_flash_gradients_only_of_what_it_knows(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], serves: bool
) -> None:
    """Where the device and the tensors are such as it serves; a window also by its lengths."""
    taken: list[Call] = []

    def gradients(call: Call, out: Tensor, lse: Tensor, grad: Tensor) -> Any:
        taken.append(call)
        return reference.gradients(call, out, lse, grad)

    monkeypatch.setattr(ops, "flash_serves", lambda q, v, scale: True)
    monkeypatch.setattr(ops, "_flash_gradients", gradients)
    for seqlens, knows in (((7, 12), True), ((12, 7), "window" not in options)):
        taken.clear()
        q, k, v = inputs((4, 2, *seqlens, 8, 8))
        attention: Any = tunefa.flash_attention
        attention(q, k, v, **options).sum().backward()
        assert bool(taken) == (serves and knows)


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
        made = reference.gradients(inner, out.transpose(1, 2), lse, grad_out.transpose(1, 2))
        return tuple(x.transpose(1, 2) for x in made)

    class Packet:
        default = staticmethod(instead)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", Packet)
    made = ops._flash_gradients(call, out.transpose(1, 2), lse, grad.transpose(1, 2))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    right = torch.autograd.grad(sdpa(q, k, v, True, window), (q, k, v), grad)
    close(tuple(x.transpose(1, 2) for x in made), right)
