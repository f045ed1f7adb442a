"""Files of records that users name: read by their suffix, and never written over another's work."""

from __future__ import annotations

import os
from pathlib import Path

from tunefa.errors import TunefaError
from tunefa.store import exports
from tunefa.store import results as store
from tunefa.store.record import Record

_MARK = "written by tunefa"
"""In the head of every generated module, and of nothing that a person wrote."""
_HEAD_CHARACTERS = 400


def read(path: Path) -> list[Record]:
    """The records in a file, by the format its name says.

    Raises TunefaError with the file, and the line where there is one, when that cannot be.
    """
    wanted = exports.readable(exports.for_path(path))
    return wanted.load(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TunefaError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TunefaError(
            f"{path}: not UTF-8 text (byte {error.start}): save it as UTF-8"
        ) from None
    if not content.strip():
        raise TunefaError(f"{path}: the file is empty: delete it or restore its content")
    return content


def write(path: Path, content: str, format_name: str) -> None:
    """Replaces the file at `path`, as a whole or not at all.

    Raises TunefaError when that fails, and when the file there is not one that tunefa wrote.
    """
    check(path, format_name)
    store.write_text(path, content)


def check(path: Path, format_name: str) -> None:
    """Raises TunefaError when `path` cannot be written in that format: to ask before long work."""
    if not path.parent.is_dir():
        raise TunefaError(f"cannot write {path}: there is no folder {path.parent}: create it")
    if not os.access(path.parent, os.W_OK):
        raise TunefaError(f"cannot write {path}: the folder {path.parent} is not writable")
    if path.exists() and not path.is_file():
        raise TunefaError(f"{path} is not a regular file: name a file to write")
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        content = _text(path)
        if hasattr(exports.get(format_name), "load"):
            exports.readable(format_name).load(content, str(path))
        elif _MARK not in content[:_HEAD_CHARACTERS]:
            raise TunefaError(f"{path} was not written by tunefa")
    except TunefaError as error:
        raise TunefaError(f"{error}; not overwritten: move it away first") from None
