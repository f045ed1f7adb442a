"""Reads files whose names come from a folder's listing: regular files only.

Opening a named pipe waits for a writer, and a device such as /dev/zero never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def content(path: Path) -> bytes:
    """Returns the bytes of the file at `path`, or of the file that a link there leads to.

    Raises OSError if it cannot be read, and for a pipe, a socket, a device or a folder; it never
    waits for another process.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "It is not a regular file", str(path))
        return file.read()


def text(path: Path) -> str:
    """Returns the UTF-8 text of the file at `path`, with `\\n` at the end of each line.

    Raises UnicodeDecodeError if it is not UTF-8, and OSError as `content` does.
    """
    return content(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
