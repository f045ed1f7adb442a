"""Overrides of PyTorch's operators, in layers: each may call the layer below, the last one PyTorch.

A kernel that was overridden can be called as long as it stays registered, and PyTorch 2.11 raises
an error where Python overrides an operator twice. So each operator is overridden once, however many
layers there are, and layers come and go in any sequence: an activation may begin or end during a
trace, and a trace during an activation.

This module imports nothing of tunefa's runtime, see `tunefa.integrations.sdpa`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Below = Callable[[], Any]
"""Computes a call without the layer, with the arguments as they are."""
Layer = Callable[[Below, tuple[Any, ...], dict[str, Any]], Any]
"""Computes a call of an operator: (the layer below, arguments, named arguments)."""

_LOCK = threading.Lock()
_OVERRIDDEN: dict[tuple[str, str], _Overridden] = {}
"""The overridden operators of this process, by name and dispatch key."""


class Layers:
    """The layers that one activation or one trace puts on operators, until `remove` is called."""

    def __init__(self, layers: Mapping[str, Layer], dispatch_key: str) -> None:
        """Puts a layer on each operator, such as `aten::mm`, on top of those that are there.

        Operators that this PyTorch lacks, or that have no kernel for the key, are left out.
        """
        self._added: list[tuple[tuple[str, str], Layer]] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.remove)
            for name, layer in layers.items():
                if has_kernel(name, dispatch_key):
                    self._add((name, dispatch_key), layer)
            undo.pop_all()

    def _add(self, place: tuple[str, str], layer: Layer) -> None:
        with _LOCK:
            if place not in _OVERRIDDEN:
                _OVERRIDDEN[place] = _Overridden(*place)
            _OVERRIDDEN[place].layers += (layer,)
            self._added.append((place, layer))

    def remove(self) -> None:
        """Takes the layers away. A second call changes nothing."""
        with _LOCK:
            added, self._added = self._added, []
            for place, layer in added:
                found = _OVERRIDDEN[place]
                found.layers = tuple(each for each in found.layers if each is not layer)
                if not found.layers:
                    _OVERRIDDEN.pop(place).remove()


class _Overridden:
    """An operator whose kernel for a dispatch key is overridden."""

    def __init__(self, name: str, dispatch_key: str) -> None:
        import torch

        self.layers: tuple[Layer, ...] = ()
        """From the lowest to the highest. A call in another thread goes on with those it began
        with."""
        self._pytorch = torch.library.get_kernel(name, dispatch_key)  # the kernel there before this
        space, _, short = name.partition("::")
        make: Any = torch.library.Library
        self._library = make(space, "IMPL")
        named: dict[str, Any] = {"with_keyset": True}
        if "allow_override" in inspect.signature(make.impl).parameters:
            named["allow_override"] = True  # another library's kernel may be there
        with _expected():
            self._library.impl(short, self._call, dispatch_key, **named)

    def _call(self, keys: Any, *arguments: Any, **named: Any) -> Any:
        """Computes a call of the operator. PyTorch gives the dispatch keys first."""
        work: Below = functools.partial(self._pytorch.call_boxed, keys, *arguments, **named)
        for layer in self.layers:
            work = functools.partial(layer, work, arguments, named)
        return work()

    def remove(self) -> None:
        """PyTorch calls the kernel again that it called before."""
        self._library._destroy()


@contextlib.contextmanager
def _expected() -> Iterator[None]:
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
