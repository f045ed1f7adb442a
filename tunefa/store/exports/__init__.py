"""Formats that records can be written in, and some that they can be read from.

A format is one file of this folder, found by listing it. At module level it has `SUFFIXES`,
`DESCRIPTION` and `dump`, `load` where reading is possible, and `holds(record) -> bool` where it
cannot write every record; `dump` leaves out the others and says so.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from tunefa.errors import TunefaError, unknown
from tunefa.store.record import Record


class Format(Protocol):
    """What the module of every format has."""

    SUFFIXES: tuple[str, ...]
    """Ends of file names that mean this format, with their dots."""
    DESCRIPTION: str
    """One line for the help text."""

    def dump(self, records: Sequence[Record]) -> str:
        """The whole file that holds these records."""


class ReadableFormat(Format, Protocol):
    """What the module of a format that can be read has as well."""

    def load(self, text: str, where: str) -> list[Record]:
        """The records in `text`; raises `TunefaError` beginning with `where`, the file's name."""


def names() -> list[str]:
    """All formats, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if not name.startswith("_"))


def get(name: str) -> Format:
    """The format of this name. Raises `TunefaError` when there is none."""
    if name not in names():
        raise unknown("format", name, names())
    return cast(Format, import_module(f"{__name__}.{name}"))


def readable(name: str) -> ReadableFormat:
    """The format of this name. Raises `TunefaError` when it can only be written, or is unknown."""
    found = get(name)
    if not hasattr(found, "load"):
        known = ", ".join(each for each in names() if hasattr(get(each), "load"))
        raise TunefaError(f"format {name!r} can be written but not read: read one of {known}")
    return cast(ReadableFormat, found)


def for_path(path: Path | str) -> str:
    """The name of the format that a file's name asks for; the longest suffix decides.

    Raises `TunefaError` when no format has the suffix.
    """
    file_name = Path(path).name.lower()
    suffixes = {suffix: name for name in names() for suffix in get(name).SUFFIXES}
    fitting = [suffix for suffix in suffixes if file_name.endswith(suffix)]
    if not fitting:
        known = ", ".join(sorted(suffixes))
        raise TunefaError(
            f"the name {str(path)!r} does not say which format it is: end it in one of {known}, "
            "or name the format"
        )
    return suffixes[max(fitting, key=len)]
