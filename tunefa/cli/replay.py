"""`tunefa search --replay FILE`: the file has workload and chip, and options must agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefa.cli.workload_options import Selection
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload
from tunefa.store.landscape import Landscape


@dataclass(frozen=True)
class _Place:
    """The workload and chip of a landscape, as a `Selection` compares them."""

    workload: Workload
    arch: str
    device: str


def selection(landscape: Landscape, given: Selection) -> Selection:
    """Selects the landscape's workload and chip. Raises TunefaError where options say otherwise."""
    place = _Place(landscape.workload, landscape.target.arch.name, landscape.target.device.name)
    others = [f"-w {text}" for text in given.texts if Workload.parse(text) != place.workload]
    if mismatch := next(iter(others), given.mismatch(place)):
        raise TunefaError(
            f"{landscape.path} holds {place.workload} on {place.device} ({place.arch}), which does "
            f"not match {mismatch}: leave that out"
        )
    return Selection(texts=(str(place.workload),), arch=place.arch, device=place.device)


def kernel_names(landscape: Landscape, given: Sequence[str]) -> tuple[str, ...]:
    """The kernels to search: those given, or all kernels of the landscape.

    Raises TunefaError for a kernel that the landscape or this tunefa does not have.
    """
    held = ", ".join(landscape.kernels)
    for name in given:
        if name not in landscape.kernels:
            raise TunefaError(f"{landscape.path} holds {held}, not --kernel {name}: leave that out")
    known = kernels.names()
    if not set(landscape.kernels) & set(known):
        raise TunefaError(
            f"{landscape.path} holds {held}, which this tunefa does not have: replay a journal of "
            f"{' or '.join(known)}"
        )
    return tuple(given) or tuple(name for name in landscape.kernels if name in known)
