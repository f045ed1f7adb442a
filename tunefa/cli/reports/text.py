"""How numbers, configs and commands are spelled, and where they are printed."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tunefa.spec.trial import Config
from tunefa.store.record import Record

NO_VALUE = "-"


def console(stderr: bool = False) -> Console:
    """A console of the terminal's width, or of COLUMNS; plain text where it is no terminal."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


def emit_json(data: Any) -> None:
    """The one JSON document of a command on standard output; what is not finite becomes null."""
    click.echo(json.dumps(_finite(data), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def config_text(config: Config, separator: str = " ") -> str:
    """`BLOCK_M=128 BLOCK_N=64`: with commas as `-c` takes it."""
    return separator.join(f"{name}={value}" for name, value in config.items())


def number(value: float | None, digits: int = 0) -> str:
    """With thousands separated: 164,864; what is missing as a dash."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    return f"{value:,.{digits}f}"


def plural(count: int, noun: str) -> str:
    """`1 block`, `2 blocks`, `1,000 blocks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def kib(size_bytes: int | None) -> str:
    """KiB with one digit where they are not whole."""
    if size_bytes is None:
        return NO_VALUE
    whole = size_bytes % 1024 == 0
    return f"{size_bytes / 1024:,.{0 if whole else 1}f}"


def chip(record: Record) -> str:
    """Where a record is from: `NVIDIA H200 (sm90), measured in eager mode`."""
    if record.device is None:
        return f"{record.arch}, {record.objective} (no measurement)"
    return f"{record.device} ({record.arch}), measured in {record.mode} mode"


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table without a frame: a line under the head, figures of `right` to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        is_right = column in right
        made.add_column(column, justify="right" if is_right else "left", no_wrap=is_right)
    return made


def facts(rows: Mapping[str, str], indent: int = 0) -> Table:
    """Names and what there is to say about them, in two columns."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    for name, value in rows.items():
        made.add_row(" " * indent + name, value)
    return made


def broken(line: str, width: int) -> str:
    """A line that is longer than `width` on several, broken where its clauses end."""
    return line if len(line) <= width else line.replace("; ", ";\n")


def heading(text: str) -> Text:
    """The title of a part of a report."""
    return Text(text, style="bold")


def command(*words: str) -> str:
    """A command line that a shell reads back as these words."""
    return shlex.join(words)


def print_command(out: Console, label: str, line: str) -> None:
    """A command to copy: on a line of its own, and never broken by us."""
    out.print()
    out.print(label)
    out.print(f"  {line}", style="bold", soft_wrap=True)
