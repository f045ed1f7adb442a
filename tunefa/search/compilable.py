"""The kernels of a search that can be compiled on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.search.request import Request
from tunefa.spec.arch import NpuArch


def only(
    request: Request, named: Sequence[str] = (), lacking: Mapping[str, str] | None = None
) -> tuple[Request, list[str]]:
    """Returns the request without the kernels that cannot be compiled here, and a line for each.
    `lacking` says why by name, if another process has found it out.

    Raises TunefaError where one of them was asked for by name, in `named`, or no kernel is left.
    """
    if request.estimate:
        return request, []
    found = {} if request.measured else languages.without_binary(request.kernels)
    asked = [kernel for kernel in request.kernels if kernel.name not in found]
    if lacking is None:
        found |= languages.without_compiler(asked, request.target.arch)
    else:
        found |= {each.name: lacking[each.name] for each in asked if each.name in lacking}
    left = tuple(kernel for kernel in request.kernels if kernel.name not in found)
    for name, why in found.items():
        if name in named or not left:
            formulas = isinstance(request.target.arch, NpuArch)
            raise TunefaError(f"{why}, or use --estimate to go on without it" if formulas else why)
    lines = [f"{name} is left out: {why}" for name, why in found.items()]
    return replace(request, kernels=left), lines
