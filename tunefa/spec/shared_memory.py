"""The layout of a kernel's shared memory, which its space writes once, as `shared_memory`.

From it come the space's `smem_bytes`, the macros that the kernel is compiled with and the dynamic
size of its launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.expr import Expr


@dataclass(frozen=True)
class Region:
    """A part of shared memory: slots of one size, one behind the other."""

    name: str
    offset: int
    """The offset of its first slot, in bytes."""
    bytes: int
    """The size of one slot."""
    slots: int

    @property
    def end(self) -> int:
        """The offset behind its last slot."""
        return self.offset + self.slots * self.bytes

    def overlaps(self, other: Region) -> bool:
        """Whether a byte belongs to both."""
        return max(self.offset, other.offset) < min(self.end, other.end)


@dataclass(frozen=True)
class SharedMemory:
    """The regions of one config, in the order of the file."""

    regions: tuple[Region, ...]

    @property
    def bytes(self) -> int:
        """The size of all of it: the largest end of a region."""
        return max(region.end for region in self.regions)

    @property
    def macros(self) -> dict[str, int]:
        """What the source of a kernel calls it: `Q_OFFSET`, `Q_BYTES` (of a slot), `Q_SLOTS`."""
        return {
            f"{region.name}_{field}".upper(): getattr(region, field)
            for region in self.regions
            for field in ("offset", "bytes", "slots")
        }


@dataclass(frozen=True)
class RegionExprs:
    """A region as the file has it."""

    name: str
    where: str
    """File and line, as errors begin."""
    at: Expr
    bytes: Expr
    slots: Expr
    overlaps: tuple[str, ...]
    """The regions before it that it may lie over."""

    @property
    def end_name(self) -> str:
        """What expressions behind it call its end."""
        return f"{self.name}_end"

    @property
    def end(self) -> Expr:
        """The offset behind its last slot."""
        source = f"({self.at.source}) + ({self.slots.source}) * ({self.bytes.source})"
        return Expr(source, self.where)

    def region(self, env: Mapping[str, Any]) -> Region:
        """The region where names mean what `env` says.

        Raises TunefaError, with file and line, for a number that is not whole or is below 0.
        """
        values = {"offset": self.at(env), "bytes": self.bytes(env), "slots": self.slots(env)}
        for field, value in values.items():
            if type(value) is not int or value < 0:
                raise TunefaError(
                    f"{self.where}: {field} must be a whole number from 0 on, not {value!r}"
                )
        return Region(self.name, **values)


def size(regions: Sequence[RegionExprs]) -> Expr:
    """The size of a layout, as `SharedMemory.bytes`, by the names of its regions' ends."""
    ends = ", ".join(each.end_name for each in regions)
    return Expr(f"max(0, {ends})", regions[0].where)


def lay_out(regions: Sequence[RegionExprs], env: Mapping[str, Any]) -> SharedMemory:
    """The layout where names, of ends too, mean what `env` says.

    Raises TunefaError, with file and line, for a region that no memory can have and for one that
    lies over another without saying so.
    """
    made = SharedMemory(tuple(each.region(env) for each in regions))
    placed = zip(made.regions, regions, strict=True)
    for (before, _), (region, exprs) in itertools.combinations(placed, 2):
        if before.name not in exprs.overlaps and region.overlaps(before):
            raise TunefaError(
                f"{exprs.where}: its bytes {region.offset} to {region.end} overlap region "
                f"{before.name}, bytes {before.offset} to {before.end}: move it with 'at', or add "
                f"{before.name} to its 'overlaps'"
            )
    return made


def source(regions: Sequence[RegionExprs], define: Mapping[str, Expr]) -> str:
    """The expressions that a layout follows from, as text; empty without regions.

    `define` has each name behind those that it reads, and the ends of the regions among them.
    """
    needed, lines = {each.end_name for each in regions}, list[str]()
    for name, expression in reversed(list(define.items())):
        if name in needed:
            needed |= expression.names
            lines.append(f"{name}: {expression.source}")
    return "\n".join(reversed(lines))
