"""The way in which this process was started, for the commands that a report tells its reader."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_NAME = "tunefa"


def words() -> list[str]:
    """Returns the words that start tunefa in the shell that has started this process.

    They are `tunefa` if the shell finds this very program by its name, otherwise its path or
    `python -m tunefa` as they were typed.
    """
    path = Path(sys.argv[0])
    if (path.parent.name, path.name) == (_NAME, "__main__.py"):
        return sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]
    if path.name != _NAME or not path.is_file():  # a program that has imported the command line
        return [_NAME]
    found = shutil.which(_NAME)
    if found is not None and os.path.samefile(found, path):
        return [_NAME]
    return [str(path) if os.sep in sys.argv[0] else os.path.join(os.curdir, path)]
