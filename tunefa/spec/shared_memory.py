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
    """A part of shared memory: adjacent slots of one size."""

    name: str
    offset: int
    """The offset of its first slot, in bytes."""
    bytes: int
    """The size of one slot, in bytes."""
    slots: int

    @property
    def end(self) -> int:
        """The offset of the first byte after its last slot."""
        return self.offset + self.slots * self.bytes

    def overlaps(self, other: Region) -> bool:
        """Returns whether some byte belongs to both."""
        return max(self.offset, other.offset) < min(self.end, other.end)


@dataclass(frozen=True)
class SharedMemory:
    """The shared memory of one config: its regions, in the order of the file."""

    regions: tuple[Region, ...]

    @property
    def bytes(self) -> int:
        """The size in bytes: the largest end of a region."""
        return max(region.end for region in self.regions)

    @property
    def macros(self) -> dict[str, int]:
        """The macros for the kernel's source: `Q_OFFSET`, `Q_BYTES` (of a slot), `Q_SLOTS`."""
        return {
            f"{region.name}_{field}".upper(): getattr(region, field)
            for region in self.regions
            for field in ("offset", "bytes", "slots")
        }


@dataclass(frozen=True)
class RegionExprs:
    """A region as the file describes it: expressions of parameters and of the workload."""

    name: str
    where: str
    """The file and line, with which errors begin."""
    at: Expr
    bytes: Expr
    slots: Expr
    overlaps: tuple[str, ...]
    """The earlier regions that it may overlap."""

    @property
    def end_name(self) -> str:
        """The name of its end in later expressions."""
        return f"{self.name}_end"

    @property
    def end(self) -> Expr:
        """The expression of its end."""
        source = f"({self.at.source}) + ({self.slots.source}) * ({self.bytes.source})"
        return Expr(source, self.where)

    def region(self, env: Mapping[str, Any]) -> Region:
        """Evaluates the region; `env` gives the values of all names.

        Raises TunefaError, with file and line, for a value that is no whole number from 0 on.
        """
        values = {"offset": self.at(env), "bytes": self.bytes(env), "slots": self.slots(env)}
        for field, value in values.items():
            if type(value) is not int or value < 0:
                raise TunefaError(
                    f"{self.where}: {field} must be a whole number from 0 on, not {value!r}"
                )
        return Region(self.name, **values)


def size(regions: Sequence[RegionExprs]) -> Expr:
    """The expression of `SharedMemory.bytes`, in terms of the regions' ends."""
    ends = ", ".join(each.end_name for each in regions)
    return Expr(f"max(0, {ends})", regions[0].where)


def lay_out(regions: Sequence[RegionExprs], env: Mapping[str, Any]) -> SharedMemory:
    """Evaluates the layout; `env` gives the values of all names, the regions' ends included.

    Raises TunefaError, with file and line, for a value that is no whole number from 0 on, and for
    a region that overlaps another one which its `overlaps` does not name.
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
    """The expressions that decide a layout, as text, for a hash; empty without regions.

    `define` holds each name after the names that it reads, the regions' ends included.
    """
    needed, lines = {each.end_name for each in regions}, list[str]()
    for name, expression in reversed(list(define.items())):
        if name in needed:
            needed |= expression.names
            lines.append(f"{name}: {expression.source}")
    return "\n".join(reversed(lines))
