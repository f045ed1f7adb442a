"""tunefa/runtime/transforms.py: torch.func's transforms work, or say that they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import tunefa
from tests.support.dense_calls import sdpa, tensors
from tests.support.op_calls import inputs
from tests.support.packed_calls import call, changed
from tests.support.packed_calls import tensors as packed
from tunefa.errors import TunefaError

Q, K, V = tensors(seqlen_q=5, seqlen_k=7, head_dim=8)


def mine(q: Tensor) -> Tensor:
    return tunefa.flash_attention(q, K, V, causal=True)


def theirs(q: Tensor) -> Tensor:
    return sdpa(q, K, V, True)


def loss_of(attend: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda q: attend(q).square().sum()


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's, of its own
def test_reverse_mode() -> None:
    torch.testing.assert_close(grad(loss_of(mine))(Q), grad(loss_of(theirs))(Q))
    ones = torch.ones_like(Q)
    torch.testing.assert_close(vjp(mine, Q)[1](ones), vjp(theirs, Q)[1](ones))
    torch.testing.assert_close(jacrev(mine)(Q), jacrev(theirs)(Q))
    torch.testing.assert_close(functionalize(mine)(Q), theirs(Q))


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_vmap(axis: int) -> None:
    q = torch.randn(3, *Q.shape)
    moved = q.movedim(0, axis)
    made = vmap(mine, axis)(moved)
    torch.testing.assert_close(made, torch.stack([theirs(each) for each in q]))
    right = torch.stack([grad(loss_of(theirs))(each) for each in q])
    torch.testing.assert_close(vmap(grad(loss_of(mine)), axis)(moved), right)
    of_all = grad(lambda moved: vmap(loss_of(mine), axis)(moved).sum())(moved)
    torch.testing.assert_close(of_all, right.movedim(0, axis))


def test_vmap_of_keys_and_descales_with_logsumexp() -> None:
    q, k, v = (x.to(torch.float8_e4m3fn) for x in (Q, K, V))
    descales = torch.rand(3, 2, 2) + 0.5

    def one(descale: Tensor) -> Any:
        return tunefa.flash_attention(q, k, v, k_descale=descale, return_lse=True)

    for mapped, right in zip(
        vmap(one)(descales), zip(*map(one, descales), strict=True), strict=True
    ):
        torch.testing.assert_close(mapped, torch.stack(right))


def test_packed_sequences_have_gradients_and_no_vmap() -> None:
    made = packed()
    q = made.q

    def attend(q: Tensor) -> Any:
        return call(changed(made, q=q), causal=True)

    leaf = q.clone().requires_grad_()
    (right,) = torch.autograd.grad(attend(leaf).sum(), leaf)
    torch.testing.assert_close(grad(lambda q: attend(q).sum())(q), right)
    with pytest.raises(TunefaError, match=r"torch\.vmap does not map flash_attention_varlen"):
        vmap(attend)(q[None])


def dual(q: Tensor) -> Any:
    forward_ad: Any = torch.autograd.forward_ad
    with forward_ad.dual_level():
        return mine(forward_ad.make_dual(q, torch.ones_like(q)))


@pytest.mark.parametrize(
    "derive",
    [
        lambda: jvp(mine, (Q,), (Q,)),
        lambda: jacfwd(mine)(Q),
        lambda: hessian(loss_of(mine))(Q),
        lambda: dual(Q),
        lambda: dual(Q.clone().requires_grad_()),
        lambda: jvp(grad(loss_of(mine)), (Q,), (Q,)),
    ],
)
def test_forward_mode_is_refused(derive: Callable[[], Any]) -> None:
    with pytest.raises(TunefaError, match="attention has no forward-mode derivative"):
        derive()


def test_inputs_without_a_tangent_may_be_used_in_forward_mode() -> None:
    forward_ad: Any = torch.autograd.forward_ad
    with forward_ad.dual_level():
        assert torch.equal(mine(Q), mine(Q.clone()))
    derive: Any = jvp  # PyTorch's annotation knows two forms of its result
    made, tangent = derive(lambda x: mine(Q) * x, (torch.ones(()),), (torch.ones(()),))
    assert torch.equal(made, tangent)


@pytest.mark.parametrize("through", ["torch.func", "autograd"])
def test_second_derivatives_are_refused(through: str) -> None:
    with pytest.raises(TunefaError, match="attention has no second derivative"):
        if through == "torch.func":
            grad(lambda q: grad(loss_of(mine))(q).sum())(Q)
        else:
            q, k, v = inputs((4, 4, 9, 9, 8, 8))
            out = tunefa.flash_attention(q, k, v)
            (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
            torch.autograd.grad(first.sum(), q)
