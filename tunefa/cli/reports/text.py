"""The form of numbers, configs, tables and commands in reports."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tunefa.cli import invocation
from tunefa.cli.cleaned import cleaned
from tunefa.experiments.document import finite
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store.prediction import COVERAGE, Interval
from tunefa.store.record import Record

NO_VALUE = "-"
INTERVAL = f"{COVERAGE:.0%}\ninterval"
"""The head of a column of intervals."""
_LEAST_COLUMNS = 40


def console(stderr: bool = False) -> Console:
    """A console of the terminal's width, or of COLUMNS; without a terminal, plain text.

    It is at least 40 columns wide: reports say nothing that can be read in fewer. Control
    characters in what is printed are replaced.
    """
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    # A width of 0 is none: COLUMNS=0 comes from programs that know no width.
    width = made.width or shutil.get_terminal_size().columns
    if made.width < _LEAST_COLUMNS:
        made.width = max(width, _LEAST_COLUMNS)
    made.push_render_hook(_Cleaning())
    return made


class _Cleaning(RenderHook):
    """Replaces control characters in everything that a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Cleaned(each) for each in renderables]


class _Cleaned:
    """A part of a report without control characters but those that rich adds for colours."""

    def __init__(self, part: ConsoleRenderable) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._part, options):
            if segment.control:
                yield segment
            else:
                yield Segment(cleaned(segment.text), segment.style)


def emit_json(data: Any) -> None:
    """Prints a command's JSON document on standard output; infinities and NaN become null."""
    click.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def config_text(config: Config, separator: str = " ") -> str:
    """Writes a config as `BLOCK_M=128 BLOCK_N=64`; with commas it is the form that `-c` takes."""
    return separator.join(f"{name}={value}" for name, value in config.items())


def number(value: float | None, digits: int = 0) -> str:
    """Writes a number with separated thousands, such as 164,864; a missing one as a dash."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    return f"{value:,.{digits}f}"


def rate_of(record: Record) -> tuple[str, str]:
    """Returns the unit of a record's rate, and the rate, as `rate` does."""
    if record.workload.op == "decode":
        return rate(record.workload, record.median_us)
    return "TFLOP/s", number(record.tflops, 1)


def rate(workload: Workload, time_us: float) -> tuple[str, str]:
    """Returns the unit of a workload's rate, and the rate: that of the memory for attention over a
    cache, which reads every key for few products, and that of the tensor cores for the rest."""
    if workload.op == "decode":
        return "GB/s", number(workload.io_bytes / time_us / 1e3)
    return "TFLOP/s", number(workload.flops / time_us / 1e6, 1)


def interval(found: Interval | None, separator: str = "") -> str:
    """Writes `90% interval 655 to 760 us` after a separator; nothing for None."""
    return "" if found is None else f"{separator}{COVERAGE:.0%} interval {found} us"


def plural(count: int, noun: str) -> str:
    """Writes `1 block`, `2 blocks` or `1,000 blocks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Writes `a`, `a and b` or `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def kib(size_bytes: int | None) -> str:
    """Writes bytes as KiB, with one digit after the point if they are not whole."""
    if size_bytes is None:
        return NO_VALUE
    whole = size_bytes % 1024 == 0
    return f"{size_bytes / 1024:,.{0 if whole else 1}f}"


def chip(record: Record) -> str:
    """The origin of a record: `NVIDIA H200 (sm90), measured in eager mode`."""
    if record.device is None:
        return f"{record.arch}, {record.objective} (no measurement)"
    return f"{record.device} ({record.arch}), measured in {record.mode} mode"


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table without a frame; the columns in `right` are aligned to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        is_right = column in right
        justify: Literal["left", "right"] = "right" if is_right else "left"
        made.add_column(column, justify=justify, no_wrap=is_right, overflow="fold")
    return made


def facts(rows: Mapping[str, str | Text], indent: int = 0) -> Table:
    """A table of two columns, with names and texts."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    for name, value in rows.items():
        made.add_row(" " * indent + name, value)
    return made


def broken(line: str, width: int) -> str:
    """A line that is longer than `width` is broken at its semicolons."""
    return line if len(line) <= width else line.replace("; ", ";\n")


def heading(text: str) -> Text:
    """The title of a part of a report."""
    return Text(text, style="bold")


def command(*words: str) -> str:
    """A command line that a shell reads back as these words.

    If the first one is `tunefa`, it is replaced by what has started this process: its path or
    `python -m tunefa` where a shell does not find `tunefa`.
    """
    if words[0] == "tunefa":
        words = (*invocation.words(), *words[1:])
    return shlex.join(words)


def print_command(out: Console, label: str, line: str) -> None:
    """Prints a command to copy, on one line of its own."""
    out.print()
    out.print(label)
    out.print(f"  {line}", style="bold", soft_wrap=True)
