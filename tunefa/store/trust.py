"""Says whether a file that is found in a folder can be trusted: no other user can have written it.

A record decides which code runs, and an entry of the cache is code. So both are used only if they
belong to this user, to root, or to the owner of tunefa itself, and if not everyone can write them
or their folders. On Windows, which has no such modes, every file is trusted.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tunefa import assets


def why_not(path: Path, root: Path) -> str | None:
    """Returns why a file is not trusted, and what to do; None if it is.

    The file is in the folder `root` or below. The folders from the file's up to `root`, and the one
    that holds `root`, are looked at. Raises OSError if one of them does not exist.
    """
    if os.name != "posix":
        return None
    if reason := next(filter(None, map(_open_to_all, _folders(path, root))), None):
        return reason
    status = path.stat()
    if status.st_uid not in _owners():
        return (
            f"{path} belongs to another user ({_name(status.st_uid)}): if you trust it, add it "
            "with `tunefa import`, or make it yours with chown"
        )
    if status.st_mode & stat.S_IWOTH:
        return f"every user can write {path}: {_remedy(path)}"
    return None


def among(paths: Sequence[Path], root: Path) -> tuple[list[Path], list[str]]:
    """Returns the paths that are trusted, and the reasons for the others, each once, at most ten.

    Files that are gone by now are in neither.
    """
    trusted: list[Path] = []
    reasons: dict[str, None] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            if reason := why_not(path, root):
                reasons[reason] = None
            else:
                trusted.append(path)
    return trusted, list(reasons)[:10]


def _folders(path: Path, root: Path) -> list[Path]:
    above = [each for each in path.parents if each.is_relative_to(root)]
    return [*above, root.parent]


def _open_to_all(folder: Path) -> str | None:
    """Returns the sentence for a folder in which every user can replace files; None for others."""
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return f"every user can write the folder {folder}: {_remedy(folder)}"
    return None


def _remedy(path: Path) -> str:
    return f"look at what is there, then use chmod o-w {path}"


def _owners() -> set[int]:
    """The users who are trusted. Who owns tunefa's code decides what runs anyway."""
    return {0, os.geteuid(), _owner_of_tunefa()}


@functools.cache
def _owner_of_tunefa() -> int:
    return Path(assets.__file__).stat().st_uid


def _name(uid: int) -> str:
    import pwd  # not on Windows

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
