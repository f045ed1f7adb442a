"""The choices for lengths nearby: a cell holds lengths that count as one.

Tiles and blocks have multiples of `STEP` rows or keys, so that no kernel needs another one up to
the next multiple. So a cell is the `STEP` lengths that round up to one multiple. If two workloads
of a cell get the same config, so does all that is between them; and where lengths grow, the end of
the cell before stands for the begin of the next one. Lengths up to `SHORT` decide more, and each is
a cell of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.spec.rounding import round_up
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice

STEP, SHORT = 16, 64
MAX_CELLS = 1024
"""The most cells of a family that are kept, with about 1 KB each."""


class Lengths(NamedTuple):
    """The batch and the lengths of a workload, of which its family says the rest."""

    batch: int
    seqlen_q: int
    seqlen_k: int


def lengths_of(workload: Workload) -> Lengths:
    """Returns the batch and the lengths of a workload."""
    return Lengths(workload.batch, workload.seqlen_q, workload.seqlen_k)


class Workloads:
    """The workloads of a family, by their lengths."""

    __slots__ = ("_fields", "_is_banded")

    def __init__(self, workload: Workload) -> None:
        """Makes those of this workload's family."""
        self._fields = dict(vars(workload))
        self._is_banded = (workload.window_left, workload.window_right) != (None, None)

    def __call__(self, asked: Lengths) -> Workload:
        """Returns the workload with these lengths."""
        if self._is_banded:  # of short sequences a window hides nothing
            return Workload(**{**self._fields, **asked._asdict()})
        made = object.__new__(Workload)  # its fields were checked with the family's first one
        made.__dict__.update(self._fields)
        made.__dict__.update(zip(Lengths._fields, asked, strict=True))
        return made


@dataclass
class _Cell:
    """The choice for all lengths from `low` to `high`."""

    choice: Choice
    low: Lengths
    high: Lengths
    is_sure: bool = True
    """Whether all that was asked in the cell got one config."""

    def holds(self, asked: Lengths) -> bool:
        """Whether the lengths are between two that got this choice."""
        low, high = self.low, self.high
        return low[1] <= asked[1] <= high[1] and low[2] <= asked[2] <= high[2]


class Cells:
    """Remembers choices of one family. Threads may share it: the worst is a choice made twice."""

    def __init__(self, choose: Callable[[Lengths], Choice]) -> None:
        """`choose` makes a choice anew."""
        self._choose = choose
        self._cells: BoundedCache[_Cell] = BoundedCache(MAX_CELLS)
        self._last: _Cell | None = None
        """The cell that was made or extended last."""

    def __len__(self) -> int:
        return len(self._cells)

    def find(self, asked: Lengths) -> Choice | None:
        """Returns the choice for the lengths, if it is remembered."""
        cell = self._cells.get(place(*asked))
        return cell.choice if cell is not None and cell.holds(asked) else None

    def around(self, asked: Lengths) -> tuple[Lengths, Lengths]:
        """Returns the lengths between which those that are asked for get one choice; the choice for
        them is remembered."""
        cell = self._cells.get(place(*asked))
        return (asked, asked) if cell is None else (cell.low, cell.high)

    def choose(self, asked: Lengths) -> Choice:
        """Returns the choice for the lengths, and remembers it."""
        key = place(*asked)
        cell, last = self._cells.get(key), self._last
        if cell is not None and cell.holds(asked):
            return cell.choice
        if cell is None and last is not None and last.is_sure and _follows(asked, last.high):
            cell = _Cell(last.choice, last.high, last.high)
            self._cells.add(key, cell)
        if cell is not None and cell.is_sure:
            found = self._choose(end := _end(cell, asked))
            if _is_same(found, cell.choice):
                cell.low = Lengths(*map(min, cell.low, end))
                cell.high = Lengths(*map(max, cell.high, end))
                self._last = cell
                return cell.choice
            cell.is_sure = False
        found = self._choose(asked)
        self._last = made = _Cell(found, asked, asked, cell is None)
        self._cells.add(key, made)
        return found


def _is_same(a: Choice, b: Choice) -> bool:
    """Whether two choices are one config, chosen for one reason."""
    same = a.kernel == b.kernel and a.config == b.config and a.is_final is b.is_final
    return same and a.how == b.how and a.record is b.record and (a.gain > 0) == (b.gain > 0)


def place(batch: int, rows: int, keys: int) -> tuple[int, int, int]:
    """Returns what names the cell of these lengths."""
    return (
        batch,
        -rows if rows <= SHORT else -(-rows // STEP),
        -keys if keys <= SHORT else -(-keys // STEP),
    )


def _follows(asked: Lengths, before: Lengths) -> bool:
    """Whether lengths have grown by a step at most, and are not short."""
    pairs = tuple(zip(asked[1:], before[1:], strict=True))
    grown = all(old == new or SHORT < old < new <= old + STEP for new, old in pairs)
    return grown and asked.batch == before.batch


def _end(cell: _Cell, asked: Lengths) -> Lengths:
    """Returns the lengths at the end of a cell, on the side where `asked` is."""

    def end(low: int, length: int, high: int) -> int:
        last = round_up(length, STEP)
        if length > high:
            return last
        return last - STEP + 1 if length < low else high

    return Lengths(*map(end, cell.low, asked, cell.high))
