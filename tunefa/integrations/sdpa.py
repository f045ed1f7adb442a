"""`activate` and `deactivate`: scaled_dot_product_attention runs tunefa where tunefa is faster.

PyTorch chooses a backend for each call of scaled_dot_product_attention. Two of them have operators
that tunefa overrides on CUDA: FlashAttention's, through PyTorch's registry of implementations of
FlashAttention, and cuDNN's, which PyTorch prefers on some chips. An override asks whether tunefa is
expected to be faster (`tunefa.integrations.sdpa_choice`). If not, it calls the kernel that was
there before, with the arguments as they are.

This module imports nothing of tunefa's runtime: PyTorch may import it while the runtime itself is
being imported, see `tunefa.integrations.autoload`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tunefa.errors import TunefaError

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

Override = Callable[..., Any]


def activate() -> None:
    """From now on scaled_dot_product_attention runs tunefa for the calls on CUDA that tunefa is
    expected to compute faster than PyTorch, and PyTorch for all others.

    It counts for the whole process, for forward and backward, and for graphs that torch.compile has
    made already. A second call changes nothing. `deactivate` ends it.

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


def deactivate() -> None:
    """From now on scaled_dot_product_attention runs PyTorch's own kernels again.

    It changes nothing where tunefa is not active.
    """
    registry = _registry()
    if registry.current_flash_attention_impl() == NAME:
        registry.restore_flash_attention_impl()


def override(dispatch_key: str = "CUDA") -> Overrides:
    """Overrides the operators for tensors of a dispatch key until `remove` is called."""
    return Overrides(dispatch_key)


class Overrides:
    """The overrides of one activation, as PyTorch's registry keeps them."""

    def __init__(self, dispatch_key: str) -> None:
        import torch

        # get_kernel finds the kernels that are there before this.
        before = {
            name: torch.library.get_kernel(f"aten::{name}", dispatch_key)
            for name in OPERATORS
            if has_kernel(f"aten::{name}", dispatch_key)
        }
        make: Any = torch.library.Library
        self._library = make("aten", "IMPL")
        with expected_overrides():
            for name, kernel in before.items():
                self._library.impl(name, _override(name, kernel), dispatch_key, with_keyset=True)

    def remove(self) -> None:
        """Ends the overrides: PyTorch calls the kernels again that it called before."""
        if self._library is not None:
            self._library._destroy()
            self._library = None


@contextlib.contextmanager
def expected_overrides() -> Iterator[None]:
    """Silences PyTorch's warning of overrides, which are wanted here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        yield


def has_kernel(name: str, dispatch_key: str) -> bool:
    """Whether there is an operator, such as `aten::mm`, with a kernel for a dispatch key."""
    import torch

    space, _, short = name.partition("::")
    if not hasattr(getattr(torch.ops, space), short):
        return False
    has: bool = torch._C._dispatch_has_kernel_for_dispatch_key(name, dispatch_key)
    return has


def _override(name: str, before: Any) -> Override:
    """Returns the function that PyTorch calls for an operator, with the dispatch keys first."""
    served: Override | None = None

    def call(keys: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal served
        if served is None:
            from tunefa.integrations import sdpa_calls  # imports the runtime, with the first call

            served = sdpa_calls.SERVED[name]
        found = served(*arguments, **named)
        return before.call_boxed(keys, *arguments, **named) if found is None else found

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
