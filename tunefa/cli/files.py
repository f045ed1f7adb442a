"""Reads and writes files of records. A file that tunefa did not write is never overwritten."""

from __future__ import annotations

import os
from pathlib import Path

from tunefa.errors import TunefaError
from tunefa.store import exports
from tunefa.store import results as store
from tunefa.store.record import Record

_MARK = "written by tunefa"
"""These words are at the head of every module that tunefa generates."""
_HEAD_CHARACTERS = 400


def read(path: Path) -> list[Record]:
    """Reads the records in a file; its suffix says the format.

    Raises TunefaError, with the file and if possible the line, if it cannot be read.
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
    """Replaces the file at `path`, completely or not at all.

    Raises TunefaError if that fails, or if the file there was not written by tunefa.
    """
    check(path, format_name)
    store.write_text(path, content)


def _current_folder_exists() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def require_current_folder() -> None:
    """Raises TunefaError if the current folder was deleted: PyTorch cannot load all it needs then,
    and some of its libraries end the process."""
    if not _current_folder_exists():
        raise TunefaError("the current folder was deleted: change to another folder (cd)")


def require_place(path: Path) -> None:
    """Raises TunefaError if there can be no file at `path`. Long work asks this first."""
    if not path.is_absolute() and not _current_folder_exists():
        raise TunefaError(
            f"cannot write {path}: the current folder was deleted: change to another folder (cd)"
        )
    if not path.parent.is_dir():
        raise TunefaError(
            f"cannot write {path}: the folder {path.parent} does not exist: create it"
        )
    if not os.access(path.parent, os.W_OK):
        raise TunefaError(f"cannot write {path}: the folder {path.parent} is not writable")
    if path.exists() and not path.is_file():
        raise TunefaError(f"{path} is not a regular file: name a file to write")


def check(path: Path, format_name: str) -> None:
    """Raises TunefaError if `path` cannot be written in that format. Long work asks this first."""
    require_place(path)
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        content = _text(path)
        if exports.can_be_read(format_name):
            exports.readable(format_name).load(content, str(path))
        elif _MARK not in content[:_HEAD_CHARACTERS]:
            raise TunefaError(f"{path} was not written by tunefa")
    except TunefaError as error:
        raise TunefaError(f"{error}; not overwritten: move it away first") from None
