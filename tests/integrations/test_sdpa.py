"""activate and deactivate, with PyTorch's registry and dispatcher, and operators on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import attention

import tunefa
from tunefa.integrations import sdpa, sdpa_choice

FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
FORWARD, BACKWARD = "_flash_attention_forward", "_flash_attention_backward"


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, pytorch_calls: list[str]) -> Iterator[list[str]]:
    """Lets `activate` override the operators on the CPU, and tunefa take all calls that it can."""
    made = sdpa.Overrides
    monkeypatch.setattr(sdpa, "override", lambda: made("CPU"))
    monkeypatch.setattr(sdpa_choice, "is_taken", lambda chosen, device, rival: True)
    yield pytorch_calls
    tunefa.deactivate()


def inputs(*, requires_grad: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as models have them: projections with the heads turned before the rows."""
    q, k, v = (torch.randn(2, 24, heads, 16) for heads in (4, 2, 2))
    return tuple(x.requires_grad_(requires_grad).transpose(1, 2) for x in (q, k, v))  # type: ignore[return-value]


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = FLASH(q, k, v, 0.0, True)[0]
    return out


def test_forward_and_backward_are_tunefa_s_until_deactivated(on_cpu: list[str]) -> None:
    given = inputs()
    right = causal(*given)
    grads = torch.autograd.grad(right.sin().sum(), given)
    assert on_cpu == [FORWARD, BACKWARD]
    tunefa.activate()
    on_cpu.clear()
    out = causal(*given)
    torch.testing.assert_close(out, right)
    assert out.stride() == right.stride()
    found = torch.autograd.grad(out.sin().sum(), given)
    torch.testing.assert_close(found, grads)
    assert on_cpu == []
    tunefa.deactivate()
    causal(*given)
    assert on_cpu == [FORWARD]


def test_a_compiled_graph_follows_without_compiling_again(on_cpu: list[str]) -> None:
    given = inputs()
    torch._dynamo.reset()
    compiled = torch.compile(causal, backend="aot_eager", fullgraph=True)
    right = compiled(*given)
    torch.autograd.grad(right.sum(), given)
    assert on_cpu == [FORWARD, BACKWARD]
    tunefa.activate()
    on_cpu.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        out = compiled(*given)
        torch.testing.assert_close(out, right)
        torch.autograd.grad(out.sum(), given)
        assert on_cpu == []
        tunefa.deactivate()
        torch.autograd.grad(compiled(*given).sum(), given)
    assert on_cpu == [FORWARD, BACKWARD]


def test_packed_sequences_of_pytorch_are_tunefa_s(on_cpu: list[str]) -> None:
    from torch.nn.attention.varlen import varlen_attn

    starts = torch.tensor([0, 5, 5, 16], dtype=torch.int32)
    q, k, v = (torch.randn(16, 2, 16, requires_grad=True) for _ in range(3))

    def run(side: tuple[int, int]) -> Any:
        out: Tensor = varlen_attn(q, k, v, starts, starts, 11, 11, window_size=side)  # type: ignore[assignment]
        return out, torch.autograd.grad(out.cos().sum(), (q, k, v))

    for side in ((-1, -1), (-1, 0), (3, 0), (2, 1)):
        tunefa.deactivate()
        right = run(side)
        tunefa.activate()
        on_cpu.clear()
        torch.testing.assert_close(run(side), right)
        assert on_cpu == []


def test_dropout_goes_to_pytorch(on_cpu: list[str]) -> None:
    tunefa.activate()
    given = inputs(requires_grad=False)
    FLASH(*given, 0.5, True)
    assert on_cpu == [FORWARD]


def test_what_tunefa_does_not_take_goes_to_pytorch_as_it_is(
    on_cpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs()
    right = causal(*given)
    tunefa.activate()
    monkeypatch.setattr(sdpa_choice, "is_taken", lambda chosen, device, rival: False)
    on_cpu.clear()
    out = causal(*given)
    torch.autograd.grad(out.sum(), given)
    assert on_cpu == [FORWARD, BACKWARD]
    assert torch.equal(out, right)


def test_activating_twice_is_activating_once(on_cpu: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tunefa.activate()
        tunefa.activate()
    assert attention.current_flash_attention_impl() == "tunefa"
    tunefa.deactivate()
    tunefa.deactivate()
    assert attention.current_flash_attention_impl() is None
    causal(*inputs())
    assert on_cpu == [FORWARD]


class Other:
    """Another implementation's handle."""

    def remove(self) -> None:
        pass


def test_another_implementation_that_is_active_is_named(on_cpu: list[str]) -> None:
    attention.register_flash_attention_impl("OTHER", register_fn=Other)
    attention.activate_flash_attention_impl("OTHER")
    try:
        with pytest.raises(tunefa.TunefaError, match=r"OTHER is active.*restore_flash_attention"):
            tunefa.activate()
        tunefa.deactivate()  # not tunefa's
        assert attention.current_flash_attention_impl() == "OTHER"
    finally:
        attention.restore_flash_attention_impl()
    tunefa.activate()
    attention.activate_flash_attention_impl("OTHER")  # PyTorch ends tunefa's before
    try:
        causal(*inputs())
        assert on_cpu == [FORWARD]
    finally:
        attention.restore_flash_attention_impl()


def test_a_pytorch_without_the_registry_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(attention, "current_flash_attention_impl")
    for function in (tunefa.activate, tunefa.deactivate):
        with pytest.raises(tunefa.TunefaError, match=r"has no registry.*new in 2\.11"):
            function()


def test_kernels_that_pytorch_has_not_are_not_overridden() -> None:
    made = sdpa.Overrides("XPU")
    made.remove()
    made.remove()
