"""The table of a search's best trials, and of the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tunefa.cli.reports import text, trial_rows
from tunefa.cli.reports.text import INTERVAL
from tunefa.cli.reports.trial_rows import LIMITER, Row
from tunefa.costmodel.ranking import MODEL_ERROR
from tunefa.search.request import Result
from tunefa.store.prediction import COVERAGE

_LEAST_CONFIG = 40
"""The least columns for a config beside its figures; in fewer it stands below them."""
_GAP = "  "


@dataclass(frozen=True)
class _Line:
    """One row as it is printed."""

    place: str
    """1, 2, ...; empty for the default."""
    figures: Mapping[str, str]
    config: str
    group: str
    """The sentence about configs that cannot be told apart; empty for one config."""

    @property
    def text(self) -> Text:
        """The config and the sentence about its group. The default is dim."""
        said = "\n".join(part for part in (self.config, self.group) if part)
        return Text(said, style="" if self.place else "dim", overflow="fold")

    @property
    def words(self) -> Text:
        """The figures in words, before the text."""
        words = ", ".join(f"{head} {cell}" for head, cell in self.figures.items())
        return Text.assemble(words.replace("\n", " "), "\n", self.text)


def show(result: Result, out: Console) -> None:
    """Prints the best trials. Parameters that all rows of a kernel share stand below the table."""
    best, named = trial_rows.rows(result), trial_rows.named(result)
    if not best:
        return
    every = list(best)
    for row in named.values():
        if all(row.first != each.first for each in every):
            every.append(row)
    kernels = list(dict.fromkeys(member.kernel for row in every for member in row.members))
    shared = {kernel: trial_rows.shared(every, kernel) for kernel in kernels}
    out.print()
    wide = _print_lines(_lines(every, len(best), named, shared), out)
    for name, meaning in _legend(best).items():
        out.print(f"{name}: {meaning}", style="dim")
    several = len(kernels) > 1
    whose = {kernel: f"all {kernel}" if several else "all of them" for kernel in kernels}
    common = {whose[each]: text.config_text(config) for each, config in shared.items() if config}
    if common and wide:
        out.print(text.facts(common))
    else:
        for whose_config, shared_part in common.items():
            out.print(f"{whose_config} {shared_part}")


def _lines(
    every: Sequence[Row],
    best: int,
    named: Mapping[str, Row],
    shared: Mapping[str, Mapping[str, Any]],
) -> list[_Line]:
    """The rows as they are printed; the first `best` have a place."""
    lines = []
    for place, row in enumerate(every, start=1):
        names = [name for name, each in named.items() if each.first == row.first]
        config = row.config(shared[row.first.kernel], with_kernel=len(shared) > 1)
        said = f"{', '.join(names)}: {config}" if names else config
        among = [name for name in named if name not in names and named[name].first in row.members]
        number = str(place) if place <= best else ""
        lines.append(_Line(number, row.figures(), said, row.group(among)))
    return lines


def _legend(best: Sequence[Row]) -> dict[str, str]:
    """The meaning of the columns and of the order of the rows, as far as that needs words."""
    said, figures = {}, best[0].figures()
    if INTERVAL in figures:
        said[INTERVAL.replace("\n", " ")] = (
            f"{COVERAGE * 10:.0f} of 10 measured times are expected in it"
        )
    error = max(row.comparison_error() for row in best)
    if INTERVAL in figures and error:
        said["told apart"] = (
            f"configs of one kernel whose times differ by more than {error:.0%}, the model's error "
            "in comparing them"
        )
    if any(row.is_doubted for row in best):
        said["order"] = (
            f"a config that spills registers counts as {MODEL_ERROR:.0%} slower, the model's error"
        )
    if LIMITER in figures:
        said[LIMITER] = "what limits the config by the cost model, see `tunefa explain`"
    return said


def _print_lines(lines: Sequence[_Line], out: Console) -> bool:
    """Prints the rows, and returns whether their figures are a table.

    Where the terminal is wide, a config stands beside its figures, else below them. Where it is too
    narrow for the figures, they are words.
    """
    aligned = _aligned(lines)
    columns = max(len(line) for line in aligned)
    heads, rows = aligned[: -len(lines)], aligned[-len(lines) :]
    if out.width - columns - len(_GAP) >= _LEAST_CONFIG:
        beside = text.table("", "")
        beside.show_header = False
        for head in heads:
            is_last = head is heads[-1]
            beside.add_row(Text(head, style="bold"), Text("config" if is_last else "", "bold"))
        for line, row in zip(lines, rows, strict=True):
            beside.add_row(row, line.text)
        out.print(beside)
        return True
    if columns > out.width:
        out.print(text.facts({line.place: line.words for line in lines}))
        return False
    for head in heads:
        out.print(head, style="bold")
    for line, row in zip(lines, rows, strict=True):
        out.print(row)
        out.print(Padding(line.text, (0, 0, 0, 3)))
    return True


def _aligned(lines: Sequence[_Line]) -> list[str]:
    """The heads of the columns, one or two lines, then the figures of each row, aligned."""
    heads = list(dict.fromkeys(head for line in lines for head in line.figures))
    depth = max(head.count("\n") for head in heads) + 1
    padded = [_padded([""] * depth + [line.place for line in lines], left=True)]
    for head in heads:
        parts = head.split("\n")
        cells = [line.figures.get(head, text.NO_VALUE) for line in lines]
        column = [""] * (depth - len(parts)) + parts + cells
        padded.append(_padded(column, left=head == LIMITER))
    return [_GAP.join(row).rstrip() for row in zip(*padded, strict=True)]


def _padded(column: Sequence[str], left: bool) -> list[str]:
    """The cells of a column, all as wide as the widest."""
    width = max(map(len, column))
    return [cell.ljust(width) if left else cell.rjust(width) for cell in column]
