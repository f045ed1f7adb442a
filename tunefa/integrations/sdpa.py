"""`activate` and `deactivate`: scaled_dot_product_attention runs tunefa where tunefa is faster.

PyTorch chooses a backend for each call of scaled_dot_product_attention. Two of them have operators
that tunefa overrides on CUDA: FlashAttention's, through PyTorch's registry of implementations of
FlashAttention, and cuDNN's, which PyTorch prefers on some chips. An override asks whether tunefa is
expected to be faster (`tunefa.integrations.sdpa_choice`). If not, it calls what it overrides, with
the arguments as they are (`tunefa.integrations.overrides`).

This module imports nothing of tunefa's runtime: PyTorch may import it while the runtime itself is
being imported, see `tunefa.integrations.autoload`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tunefa.errors import TunefaError
from tunefa.integrations.overrides import Below, Layer, Layers
from tunefa.store.results import user_root

NAME = "tunefa"
"""The name among PyTorch's implementations of FlashAttention."""
OPERATORS = (
    "_flash_attention_forward",
    "_flash_attention_backward",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
)
"""The operators of aten that are overridden. scaled_dot_product_attention,
torch.nn.attention.varlen and nested tensors call the first two."""


def activate() -> None:
    """From now on scaled_dot_product_attention runs tunefa for the calls on CUDA that tunefa is
    expected to compute faster than PyTorch, and PyTorch for all others.

    It counts for the whole process, for forward and backward, and for graphs that torch.compile has
    made already. A second call changes nothing. `deactivate` ends it. Where the user has searched
    FlexAttention, it also gets its options from then on, in this thread.

    Raises TunefaError where this PyTorch has no registry of such implementations (before 2.11), and
    where another implementation, such as FA4, is active.
    """
    registry = _registry()
    active = registry.current_flash_attention_impl()
    if active == NAME:
        return
    if active is not None:
        raise TunefaError(
            f"{active} is active, another implementation of FlashAttention, and PyTorch runs one "
            f"at a time: call torch.nn.attention.restore_flash_attention_impl() first"
        )
    registry.register_flash_attention_impl(NAME, register_fn=override)
    registry.activate_flash_attention_impl(NAME)
    if has_flex_records():  # most users have none, and it imports Inductor
        from tunefa.integrations import flex_later

        flex_later.begin()


def deactivate() -> None:
    """From now on scaled_dot_product_attention runs PyTorch's own kernels again.

    It changes nothing where tunefa is not active.
    """
    registry = _registry()
    if registry.current_flash_attention_impl() == NAME:
        registry.restore_flash_attention_impl()
        if flex := sys.modules.get("tunefa.integrations.flex_pass"):
            flex.end()


def has_flex_records() -> bool:
    """Whether the user has records of FlexAttention; their files say so, and are not read."""
    return next(user_root().rglob("*--flex_attention_*.yaml"), None) is not None


def override(dispatch_key: str = "CUDA") -> Overrides:
    """Overrides the operators for tensors of a dispatch key until `remove` is called."""
    return Overrides(dispatch_key)


class Overrides(Layers):
    """The overrides of one activation, as PyTorch's registry keeps them."""

    def __init__(self, dispatch_key: str) -> None:
        super().__init__({f"aten::{name}": _layer(name) for name in OPERATORS}, dispatch_key)


def _layer(name: str) -> Layer:
    """Returns the layer on an operator of aten: tunefa, or else what lies below."""
    served: Callable[..., Any] | None = None

    def call(below: Below, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        nonlocal served
        if served is None:
            from tunefa.integrations import sdpa_calls  # imports the runtime, with the first call

            served = sdpa_calls.SERVED[name]
        found = served(*arguments, **named)
        return below() if found is None else found

    return call


def _registry() -> Any:
    """PyTorch's module with the registry. Raises TunefaError where it has none."""
    import torch
    from torch.nn import attention

    needed = ("register_flash_attention_impl", "current_flash_attention_impl")
    if not all(hasattr(attention, name) for name in needed):
        raise TunefaError(
            f"PyTorch {torch.__version__} has no registry of FlashAttention's implementations, "
            f"which is new in 2.11: install a newer PyTorch, or call tunefa.flash_attention"
        )
    return attention
