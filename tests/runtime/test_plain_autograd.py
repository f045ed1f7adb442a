"""tunefa/runtime/plain_autograd.py: gradients of plain tensors, with and without the op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tunefa
from tests.support.op_calls import close, inputs
from tunefa.errors import TunefaError
from tunefa.runtime import ops, plain_autograd, process
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.plain_autograd import are_plain, no_mode_is_active

SHAPE = (4, 2, 7, 12, 8, 16)


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the names of tunefa's ops."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace == "tunefa":
            self.names.append(op._opname)
        return op(*args, **(kwargs or {}))


def of_op(x: Sequence[Tensor], grads: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The gradients of q, k and v by the op's own formula."""
    q, k, v = x
    both = ops.flash_attention(Tensors(q, k, v), Options(True), None)
    pairs = [(out, grad) for out, grad in zip(both, grads, strict=True) if grad is not None]
    outs, wanted = zip(*pairs, strict=True)
    return torch.autograd.grad(outs, (q, k, v), wanted, allow_unused=True)


def backward(loss: Any) -> None:
    loss.backward()


@pytest.mark.parametrize("which", [(True, False), (False, True), (True, True)])
def test_gradients_are_those_of_the_op(
    which: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = q, k, v = inputs(SHAPE)
    both = tunefa.flash_attention(q, k, v, causal=True, return_lse=True)
    random = [torch.randn_like(each) for each in both]
    wanted = [each if use else None for each, use in zip(random, which, strict=True)]
    expected = of_op(x, wanted)
    for name in ("flash_attention", "gradients"):
        monkeypatch.setattr(ops, name, None)  # neither op is called
    both = tunefa.flash_attention(q, k, v, causal=True, return_lse=True)
    pairs = [(out, grad) for out, grad in zip(both, wanted, strict=True) if grad is not None]
    outs, grads = zip(*pairs, strict=True)
    close(torch.autograd.grad(outs, x, grads), expected)


def test_packed_sequences_have_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x = q, k, v = [torch.randn(9, 2, 8).requires_grad_() for _ in range(3)]
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)
    parts = [[each[None, a:b] for each in x] for a, b in ((0, 4), (4, 9))]
    right = torch.cat([tunefa.flash_attention(*part, causal=True)[0] for part in parts])
    grad = torch.randn_like(right)
    expected = torch.autograd.grad(right, x, grad)
    monkeypatch.setattr(ops, "flash_attention", None)
    out = tunefa.flash_attention_varlen(q, k, v, starts, starts, 5, 5, causal=True)
    close(torch.autograd.grad(out, x, grad), expected)


def test_only_one_input_needs_a_gradient() -> None:
    q, k, v = (each.detach() for each in inputs(SHAPE))
    out = tunefa.flash_attention(q, k.requires_grad_(), v, causal=True)
    backward(out.sum())
    assert k.grad is not None and q.grad is None and v.grad is None


class Stub:
    """A runtime with one plan, which notes that it runs."""

    def __init__(self, done: list[str], fails: bool = False) -> None:
        self._done, self._fails = done, fails

    def ready(self, tensors: Tensors, options: Options, scale: float | None) -> Any:
        return self, scale

    def run(self, tensors: Tensors, scale: float | None) -> tuple[Tensor, Tensor]:
        self._done.append("with gradients" if torch.is_grad_enabled() else "run")
        if self._fails:
            raise TunefaError("no")
        return torch.empty_like(tensors.q), torch.empty(4, 2, 7)


def test_the_kernel_starts_before_autograd_hears_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    apply = plain_autograd._apply

    def heard(*given: Any) -> Any:
        done.append("apply")
        return apply(*given)

    monkeypatch.setattr(process, "_RUNTIME", Stub(done))
    monkeypatch.setattr(plain_autograd, "_apply", heard)
    out = tunefa.flash_attention(*inputs(SHAPE))
    assert done == ["run", "apply"] and torch.is_grad_enabled()
    # It is what a function of autograd returns, not a view of something else.
    assert out.requires_grad and not out.is_leaf and out._base is None
    assert type(out.grad_fn).__name__ == "_AttentionBackward"


def test_a_call_that_fails_leaves_gradients_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_RUNTIME", Stub([], fails=True))
    with pytest.raises(TunefaError, match="no"):
        tunefa.flash_attention(*inputs(SHAPE))
    assert torch.is_grad_enabled()


def test_hooks_of_saved_tensors_get_all_of_them() -> None:
    x = q, k, v = inputs(SHAPE)
    right = torch.autograd.grad(tunefa.flash_attention(q, k, v).square().sum(), x)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
        out, lse = tunefa.flash_attention(q, k, v, return_lse=True)
    same = [each.data_ptr() for each in (out, lse, q, k, v)]
    assert [each.data_ptr() for each in packed] == same
    close(torch.autograd.grad(out.square().sum(), x), right)


def test_modes_see_the_ops_of_both_passes() -> None:
    x = q, k, v = inputs(SHAPE)
    with Seen() as seen:
        assert not no_mode_is_active()
        backward(tunefa.flash_attention(q, k, v).sum())
    assert seen.names == ["flash_attention", "flash_attention_backward"]
    out = tunefa.flash_attention(q, k, v)
    with Seen() as seen:  # of a forward pass that nothing watched
        torch.autograd.grad(out.sum(), x)
    assert seen.names == ["flash_attention_backward"]
    assert no_mode_is_active()


def test_tensors_of_subclasses_are_not_plain() -> None:
    class Sub(torch.Tensor):
        pass

    x = torch.ones(1)
    assert are_plain((x, torch.nn.Parameter(x), None, "no tensor"))
    assert not are_plain((x, x.as_subclass(Sub), None))


def test_a_backward_pass_may_be_compiled() -> None:
    x = q, k, v = inputs(SHAPE)
    right = torch.autograd.grad(tunefa.flash_attention(q, k, v).square().sum(), x)

    def compiled(module: Any) -> Any:
        return torch.compile(module, backend="aot_eager")

    loss = tunefa.flash_attention(q, k, v).square().sum()
    with torch._dynamo.compiled_autograd._enable(compiled):
        backward(loss)
    close(tuple(each.grad for each in x if each.grad is not None), right)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_gradients", [True, False])
def test_a_trace_keeps_the_call_and_not_its_tensors(with_gradients: bool) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tunefa.flash_attention(q, k, v, causal=True) * 1

    x = [each.detach().requires_grad_(with_gradients) for each in inputs(SHAPE)]
    traced: Any = torch.jit.trace(attend, tuple(x), check_trace=False)  # type: ignore[no-untyped-call]
    assert "tunefa::flash_attention" in str(traced.graph)
    others = [each.detach() + 1 for each in x]
    torch.testing.assert_close(traced(*others), attend(*others))


@pytest.mark.parametrize("place", [0, 1], ids=["out", "lse"])
def test_several_gradients_at_once_are_those_of_one_after_the_other(place: int) -> None:
    x = q, k, v = inputs(SHAPE)
    made = tunefa.flash_attention(q, k, v, causal=True, return_lse=True)[place]
    wanted = torch.randn(3, *made.shape)
    found = torch.autograd.grad(made, x, wanted, True, is_grads_batched=True, allow_unused=True)
    right = [torch.autograd.grad(made, x, each, True, allow_unused=True) for each in wanted]
    close(found, tuple(torch.stack(each) for each in zip(*right, strict=True)))


def test_a_changed_input_is_noticed() -> None:
    q, k, v = inputs(SHAPE)
    scaled = q * 2
    out = tunefa.flash_attention(scaled, k, v)
    scaled.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(out.sum())


def test_e4m3_has_no_gradient_without_descales_too() -> None:
    x = [torch.randn(1, 4, 2, 16).to(torch.float8_e4m3fn).requires_grad_() for _ in range(3)]
    out = tunefa.flash_attention(x[0], x[1], x[2])
    with pytest.raises(TunefaError, match="has no gradient"):
        backward(out.sum())


def test_tensors_of_a_transform_that_has_ended_go_through_the_op() -> None:
    q, k, v = inputs(SHAPE)
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x.sum()

    torch.func.grad(keep)(k.detach())
    out = tunefa.flash_attention(q, kept[0], v, causal=True)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(tunefa.flash_attention(q, k, v, causal=True), (q, v), grad)
    close(torch.autograd.grad(out, (q, v), grad), expected)
