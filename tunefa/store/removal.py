"""Removes records from the user's own files. Those that tunefa ships are never touched."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefa.errors import TunefaError
from tunefa.store import results
from tunefa.store.record import Record


@dataclass(frozen=True)
class Stored:
    """A record of the user's, the file that holds it, and perhaps why it is not needed."""

    path: Path
    record: Record
    why: str = ""


def remove(chosen: Sequence[Stored]) -> None:
    """Removes records from their files; a file without any other record is deleted.

    Raises TunefaError for the first file that cannot be changed.
    """
    by_path: dict[Path, list[Record]] = defaultdict(list)
    for each in chosen:
        by_path[each.path].append(each.record)
    for path, records in by_path.items():
        left = results.read(path)
        for record in records:
            with contextlib.suppress(ValueError):  # removed since
                left.remove(record)
        if left:
            results.write(path, left)
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise TunefaError(f"cannot remove {path}: {error.strerror}") from error
