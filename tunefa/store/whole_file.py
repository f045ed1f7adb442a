"""Writes a file as a whole: readers see the old content or the new one, also after a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from tunefa.errors import TunefaError


def write(path: Path, data: bytes) -> None:
    """Replaces the file at `path` by `data`, in one step.

    Raises TunefaError if that fails. Then the old file is unchanged, and no temporary file is left.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    if os.path.exists(target) and not os.path.isfile(target):
        raise TunefaError(f"{path} is not a regular file: name a file to write")
    aside = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        _write_through(aside, data)
        os.replace(aside, target)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    _sync_folder(target.parent)


def cannot_write(path: Path, error: OSError) -> TunefaError:
    """Returns the error for a path that cannot be written; the caller raises it."""
    remedies = {
        errno.ENOSPC: "free some space or ",
        errno.EDQUOT: "free some of your quota or ",
        errno.ENOENT: "create the folder or ",
        errno.EACCES: "make the folder writable or ",
        errno.EPERM: "make the folder writable or ",
    }
    return TunefaError(
        f"cannot write {path}: {error.strerror or error}; nothing there was changed: "
        f"{remedies.get(error.errno or 0, '')}choose another place "
        "(TUNEFA_HOME moves the user's store)"
    )


def _write_through(path: Path, data: bytes) -> None:
    """Creates `path` and waits until the data is on disk, which must be before the rename."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o664)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` durable, on file systems that can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
