"""Autograd on a CUDA device, with the kernels that compute gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import tunefa
from tests.support.gpu_kernels import seen_target
from tests.support.packed_sequences import starts as starts_of
from tunefa.compile.contract import unordered, unread
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16
OF_GRADIENTS = [name for name in kernels.names() if kernels.load(name).op == "bwd"]


def inputs(
    seqlen: int = 512, heads_kv: int = 4, head_dim: int = 128, dtype: torch.dtype = BF16
) -> list[Tensor]:
    """q, k and v, BSHD, that need gradients; 4 query heads."""
    torch.manual_seed(0)
    return [
        torch.randn(2, seqlen, heads, head_dim, device="cuda", dtype=dtype).requires_grad_()
        for heads in (4, heads_kv, heads_kv)
    ]


def exact(x: list[Tensor], loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a loss of a causal call's (out, lse), in fp64."""
    leaves = [each.detach().double().requires_grad_() for each in x]
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
    out, lse = reference.attention(AttentionInputs(q, k, v, True, x[0].shape[3] ** -0.5))
    return torch.autograd.grad(loss(out.transpose(1, 2), lse), leaves)


def close(made: Any, right: Any, limit: float = 2e-2) -> None:
    """Errors are relative to the gradient, or to a thousandth of the largest one: that of a query
    with a single key is zero."""
    least = 1e-3 * max(each.norm() for each in right)
    for name, mine, theirs in zip("qkv", made, right, strict=False):
        error = float((mine.double() - theirs).norm() / theirs.norm().clamp_min(least))
        assert error <= limit, f"d{name} is off by {error:.1e}"


def ran() -> str:
    """The kernel that computed the last gradients."""
    chosen = tunefa.last_choice(backward=True)
    assert chosen is not None
    return chosen.kernel


def test_a_kernel_computes_gradients_and_says_so() -> None:
    x = inputs()
    out = tunefa.flash_attention(*x, causal=True)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, x, grad)
    assert ran() in OF_GRADIENTS
    close(made, exact(x, lambda out, lse: (out * grad.double()).sum()))
    assert [each.stride() for each in made] == [each.stride() for each in x]


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_few_queries_and_many_keys(head_dim: int) -> None:
    # Tiles whose keys are all seen have no masked step: kernels skip that loop.
    q, k, v = inputs(1014, 4, head_dim)
    q = q[:, -38:].detach().requires_grad_()
    out = tunefa.flash_attention(q, k, v, causal=True)
    grad = torch.randn_like(out)
    made = torch.autograd.grad(out, [q, k, v], grad)
    close(made, exact([q, k, v], lambda out, lse: (out * grad.double()).sum()))


def test_a_gradient_of_the_logsumexp() -> None:
    x = inputs(heads_kv=2)
    out, lse = tunefa.flash_attention(*x, causal=True, return_lse=True)
    grad, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    made = torch.autograd.grad((out, lse), x, (grad, grad_lse))
    assert ran() == "pytorch" or "dlse" not in unread(kernels.load(ran()))
    close(
        made,
        exact(x, lambda o, s: (o * grad.double()).sum() + (s * grad_lse.double()).sum()),
    )


@pytest.mark.parametrize("kind", ["expanded", "rows apart", "heads first", "a slice"])
def test_gradients_of_any_strides(kind: str) -> None:
    x = inputs()
    out = tunefa.flash_attention(*x, causal=True)
    shape = out.shape
    grad = {
        "expanded": lambda: torch.ones((), device="cuda", dtype=BF16).expand(shape),
        "rows apart": lambda: torch.randn(2, 512, 128, 4, device="cuda", dtype=BF16).mT,
        "heads first": lambda: torch.randn(2, 4, 512, 128, device="cuda", dtype=BF16).transpose(
            1, 2
        ),
        "a slice": lambda: torch.randn(2, 512, 4, 256, device="cuda", dtype=BF16)[..., 128:],
    }[kind]()
    assert grad.shape == shape
    made = torch.autograd.grad(out, x, grad)
    close(made, exact(x, lambda out, lse: (out * grad.double()).sum()))


def test_inputs_of_any_strides_and_an_input_that_is_used_twice() -> None:
    torch.manual_seed(0)
    fused = torch.randn(2, 512, 12, 128, device="cuda", dtype=BF16).requires_grad_()
    x = [fused[:, :, i : i + 4] for i in (0, 4, 8)]
    grad = torch.randn_like(x[0])
    (made,) = torch.autograd.grad(tunefa.flash_attention(*x, causal=True), fused, grad)
    right = exact(x, lambda out, lse: (out * grad.double()).sum())
    close([made[:, :, i : i + 4] for i in (0, 4, 8)], right)
    q, k, _ = inputs()
    (twice,) = torch.autograd.grad(tunefa.flash_attention(q, k, k, causal=True), k, grad)
    apart = exact([q, k, k.detach().clone()], lambda out, lse: (out * grad.double()).sum())
    close([twice], [apart[1] + apart[2]])


def test_only_what_needs_a_gradient_gets_one() -> None:
    q, k, v = inputs()
    out = tunefa.flash_attention(q.detach(), k, v.detach(), causal=True)
    (dk,) = torch.autograd.grad(out.sum(), k)
    right = exact([q, k, v], lambda out, lse: out.sum())
    close([dk], [right[1]])


def step(*x: Tensor) -> Tensor:
    return (tunefa.flash_attention(*x, causal=True).float() ** 2).mean()


def test_under_compile_checkpointing_and_autocast() -> None:
    x = inputs()
    right = torch.autograd.grad(step(*x), x)
    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True)
    close(torch.autograd.grad(compiled(*x), x), [each.double() for each in right], 1e-2)
    loss: Any = checkpoint(step, *x, use_reentrant=False)
    close(torch.autograd.grad(loss, x), [each.double() for each in right], 1e-2)
    wide = [each.detach().float().requires_grad_() for each in x]
    with torch.autocast("cuda", BF16):
        loss = step(*wide)
    made = torch.autograd.grad(loss, wide)
    assert made[0].dtype == torch.float32
    close(made, [each.double() for each in right], 1e-2)


def test_a_graph_of_a_whole_step() -> None:
    x = inputs()
    cuda: Any = torch.cuda  # parts of it have no types
    stream = cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries make their plans in the first step
        for _ in range(2):
            torch.autograd.grad(step(*x), x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(step(*x), x)
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for each in x:
                each.copy_(torch.randn_like(each))
        graph.replay()
        right = torch.autograd.grad(step(*x), x)
        close(captured, [each.double() for each in right], 1e-2)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_deterministic_gradients_are_equal_to_the_last_bit(head_dim: int) -> None:
    x = inputs(2048, 2, head_dim)
    grad = torch.randn(2, 2048, 4, head_dim, device="cuda", dtype=BF16)

    def once(**options: Any) -> Any:
        out = tunefa.flash_attention(*x, causal=True, **options)
        return torch.autograd.grad(out, x, grad)

    first = once(deterministic=True)
    assert ran() in OF_GRADIENTS and not unordered(*_last_case())
    for _ in range(4):
        assert all(map(torch.equal, once(deterministic=True), first))
    torch.use_deterministic_algorithms(True)
    try:
        assert all(map(torch.equal, once(), first))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not torch.are_deterministic_algorithms_enabled()


def _last_case() -> tuple[Case, Any]:
    chosen = tunefa.last_choice(backward=True)
    assert chosen is not None and chosen.workload is not None
    case = Case(kernels.load(chosen.kernel), chosen.workload, seen_target())
    return case, chosen.config


def test_packed_sequences() -> None:
    """One plan serves both calls, which have other numbers of rows."""
    for lengths in ([125, 1, 700, 64], [300, 2, 0, 600]):
        x, grad, starts = packed_inputs(lengths)
        out = tunefa.flash_attention_varlen(*x, starts, starts, 700, 700, causal=True)  # type: ignore[call-overload]
        made = torch.autograd.grad(out, x, grad)
        assert ran() in OF_GRADIENTS
        for start, length in zip(starts.tolist(), lengths, strict=False):
            rows = slice(start, start + length)
            one = [each[rows][None] for each in x]
            of_one = grad[rows][None].double()

            def loss(out: Tensor, lse: Tensor, of_one: Tensor = of_one) -> Tensor:
                return (out * of_one).sum()

            if length > 2:  # of one key, dQ and dK are zero
                close([each[rows][None] for each in made], exact(one, loss), 4e-2)


def packed_inputs(lengths: list[int]) -> tuple[list[Tensor], Tensor, Tensor]:
    """q, k and v of packed sequences, the gradient of their output, and where they begin."""
    torch.manual_seed(0)
    made = [torch.randn(sum(lengths), n, 128, device="cuda", dtype=BF16) for n in (4, 2, 2, 4)]
    return [each.requires_grad_() for each in made[:3]], made[3], starts_of(*lengths).cuda()


def test_a_step_does_not_wait_for_the_device() -> None:
    x = inputs()
    torch.autograd.grad(step(*x), x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(step(*x), x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_grows_over_changing_lengths() -> None:
    chance = random.Random(0)

    def round_of_steps() -> int:
        for _ in range(12):
            x = inputs(chance.choice([128, 256, 300, 512]), chance.choice([1, 4]))
            torch.autograd.grad(step(*x), x)
        del x
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    round_of_steps()
    before = round_of_steps()
    assert round_of_steps() <= before + 2**16


def test_seven_random_lengths_take_the_default_s_kernel() -> None:
    """Without a record the default computes gradients, for lengths that no tile divides too."""
    for seqlen in (1, 17, 100, 129, 513, 777, 1023):
        x = inputs(seqlen)
        grad = torch.randn_like(x[0])
        made = torch.autograd.grad(tunefa.flash_attention(*x, causal=True), x, grad)
        assert ran() in OF_GRADIENTS
        weight = grad.double()
        right = exact(x, lambda out, lse: (out * weight).sum())  # noqa: B023
        if seqlen > 1:  # of one key, dQ and dK are zero
            close(made, right)
