"""Kernels whose defaults have other values of some parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel


def changed(name: str, **parameters: Any) -> Kernel:
    """Returns the kernel of that name, with these values in each of its defaults."""
    kernel = kernels.load(name)
    defaults = [
        replace(each, config={**each.config, **parameters}) for each in kernel.space.defaults
    ]
    return replace(kernel, space=replace(kernel.space, defaults=tuple(defaults)))


def among_usable(kernel: Kernel) -> tuple[Kernel, ...]:
    """Returns all kernels that are usable here, with this one in place of its like."""
    return tuple(kernel if each.name == kernel.name else each for each in kernels.usable())
