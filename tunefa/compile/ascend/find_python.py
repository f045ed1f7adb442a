"""Finds a CPython 3.11: the wheels of the front end and of the compiler are for no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tunefa.compile.ascend import pins
from tunefa.errors import TunefaError

_PROBE = """
import ensurepip, platform, sys, venv
print(platform.python_implementation(), *sys.version_info[:2])
"""
_PLACES = (
    "~/.pyenv/versions/{}.*/bin/python",
    "~/.local/share/uv/python/cpython-{}.*/bin/python{}",
    "~/miniconda3/envs/*/bin/python{}",
    "/opt/python/cp311-cp311/bin/python",
    "/usr/local/bin/python{}",
)


def find(chosen: str | None = None) -> Path:
    """The Python that `chosen` names, or one that is found.

    Raises TunefaError where that is no CPython 3.11 that can make environments, or there is none.
    """
    wanted = "{}.{}".format(*pins.PYTHON)
    if chosen is not None:
        if why := _why_not(chosen):
            raise TunefaError(f"{chosen} does not serve: {why}: name a CPython {wanted}")
        return Path(chosen).absolute()
    tried: dict[str, str] = {}
    for each in _candidates():
        why = _why_not(each)
        if why is None:
            return Path(each).absolute()
        tried[each] = why
    said = "; ".join(f"{path}: {why}" for path, why in tried.items())
    raise TunefaError(
        f"no CPython {wanted} found, which the wheels of Huawei's compiler are for"
        f"{f' ({said})' if said else ''}: install one (apt install python{wanted}-venv, uv python "
        f"install {wanted}, or pyenv install {wanted}) or name one with --python"
    )


def _candidates() -> Iterator[str]:
    """This Python if it is one, the one on PATH, then where pyenv and the like keep theirs."""
    wanted = "{}.{}".format(*pins.PYTHON)
    if sys.version_info[:2] == pins.PYTHON:
        yield sys.executable
    if on_path := shutil.which(f"python{wanted}"):
        yield on_path
    for place in _PLACES:
        pattern = os.path.expanduser(place.replace("{}", wanted))
        yield from (str(path) for path in sorted(Path("/").glob(pattern.lstrip("/"))))


def _why_not(python: str) -> str | None:
    """Why a Python does not serve, in words; None if it does."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({error})"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return f"it makes no environments ({last})"
    said = done.stdout.split()
    if said == ["CPython", *map(str, pins.PYTHON)]:
        return None
    return f"it is {said[0]} {'.'.join(said[1:])}" if len(said) == 3 else "it is no Python"
