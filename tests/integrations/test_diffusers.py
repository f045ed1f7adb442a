"""tunefa as an attention backend of Hugging Face Diffusers: tiny random models on the CPU, beside
its native backend."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.unwritten import nan_behind
from tunefa.integrations import diffusers as integration

COMPILE: Any = torch.compile


@pytest.fixture
def diffusers() -> Iterator[Any]:
    found = pytest.importorskip("diffusers", reason="diffusers is not installed")
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    found.logging.set_verbosity_error()
    integration.register()
    integration.register()  # changes nothing
    assert [each.value for each in AttentionBackendName].count("tunefa") == 1
    yield found
    _AttentionBackendRegistry.set_active_backend(AttentionBackendName.NATIVE)


@pytest.fixture
def flux(diffusers: Any) -> tuple[Any, dict[str, Any]]:
    """A model whose text and picture attend to one another, and its arguments."""
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=24, pooled_projection_dim=24,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    given = {
        "hidden_states": torch.randn(2, 12, 8),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 24),
        "timestep": torch.tensor([0.5, 0.7]),
        "img_ids": torch.randn(12, 3).round(),
        "txt_ids": torch.zeros(5, 3),
    }
    return loud(model), given


@pytest.fixture
def qwen(diffusers: Any) -> tuple[Any, dict[str, Any]]:
    """A model with a mask of the text's padding, and its arguments."""
    model = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=24, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3]).bool()
    given = {
        "hidden_states": torch.randn(2, 16, 16),
        "encoder_hidden_states": torch.randn(2, 7, 24),
        "encoder_hidden_states_mask": mask,
        "timestep": torch.tensor([0.5, 0.7]),
        "img_shapes": [[(1, 4, 4)], [(1, 4, 4)]],
    }
    return loud(model), given


def loud(model: Any) -> Any:
    """The model with larger weights, so that attention matters."""
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.mul_(2)
    return model


def both(model: Any, function: Callable[[], Any]) -> tuple[Any, Any]:
    """The results of a function with Diffusers' native backend, and with tunefa's."""
    model.set_attention_backend("native")
    right = function()
    model.set_attention_backend("tunefa")
    with warnings.catch_warnings(), nan_behind() as calls:
        warnings.filterwarnings("error", ".*not tunefa")
        found = function()
    assert len(calls) == 2  # there are two layers
    return right, found


@pytest.mark.parametrize("name", ["flux", "qwen"])
def test_a_training_step(name: str, request: pytest.FixtureRequest) -> None:
    model, given = request.getfixturevalue(name)

    def step() -> tuple[Tensor, ...]:
        model.zero_grad()
        out = model(**given).sample
        out.square().sum().backward()
        return out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)

    right, found = both(model, step)
    assert len(right) == len(found) > 10
    for one, other in zip(found, right, strict=True):
        assert float((one - other).norm()) <= 1e-4 * float(other.norm()) + 1e-6


@pytest.mark.parametrize("name", ["flux", "qwen"])
def test_a_compiled_model(name: str, request: pytest.FixtureRequest) -> None:
    model, given = request.getfixturevalue(name)
    model.set_attention_backend("tunefa")
    torch._dynamo.reset()
    with torch.no_grad(), nan_behind():
        right = model(**given).sample
        found = COMPILE(model, backend="eager", fullgraph=name == "flux")(**given).sample
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def inputs(rows: int = 6, keys: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, rows, 4, 8), torch.randn(2, keys, 2, 8), torch.randn(2, keys, 2, 8)


VALID = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0]]).bool()


@pytest.mark.parametrize("mask", [VALID, VALID[1:], VALID[:, None, None], None], ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_masks_of_keys(diffusers: Any, mask: Tensor | None, scale: float | None) -> None:
    from diffusers.models import attention_dispatch

    given = inputs()
    right = attention_dispatch._native_attention(*given, mask, scale=scale, enable_gqa=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = integration.attention(*given, mask, scale=scale, enable_gqa=True)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (torch.randn(2, 6), False),
        (torch.rand(2, 1, 6, 6) < 0.8, False),
        (torch.randn(6, 6), False),
        (None, True),
    ],
    ids=["additive", "of rows and keys", "without a batch", "causal to the top left"],
)
def test_other_masks_are_pytorch_s(diffusers: Any, mask: Tensor | None, causal: bool) -> None:
    from diffusers.models import attention_dispatch

    given = inputs(4 if causal else 6)
    named: dict[str, Any] = {"is_causal": causal, "enable_gqa": True}
    right = attention_dispatch._native_attention(*given, mask, **named)
    with pytest.warns(UserWarning, match="is computed by scaled_dot_product_attention, not tunefa"):
        found = integration.attention(*given, mask, **named)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, right)
    with pytest.raises(tunefa.TunefaError, match="comes with return_lse: tunefa has no such mask"):
        integration.attention(*given, mask, **named, return_lse=True)


def test_lse_and_windows() -> None:
    given = inputs()
    out, lse = integration.attention(*given, window_size=(2, 1), return_lse=True)
    right, right_lse = tunefa.flash_attention(*given, window=(2, 1), return_lse=True)
    torch.testing.assert_close((out, lse), (right, right_lse))
    causal = integration.attention(*given, is_causal=True)
    torch.testing.assert_close(causal, tunefa.flash_attention(*given, causal=True))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"dropout_p": 0.1}, r"dropout_p is 0.1, and tunefa has no dropout: set it to 0.0"),
        (
            {"_parallel_config": object()},
            "context parallelism is on, and tunefa's backend has none",
        ),
    ],
    ids=["dropout", "context parallelism"],
)
def test_what_is_not_served_is_named(named: dict[str, Any], said: str) -> None:
    with pytest.raises(tunefa.TunefaError, match=said):
        integration.attention(*inputs(), **named)


def test_without_diffusers_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers.models.attention_dispatch", None)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(tunefa.TunefaError, match=r"diffusers cannot be used.*install"):
        integration.register()
