"""Finds a CPython 3.11, the only one that both front end and compiler have wheels for."""

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
    """Returns the Python at the path `chosen`; for None, one that it finds on this machine.

    Raises TunefaError if there is no CPython 3.11 that can make virtual environments.
    """
    wanted = "{}.{}".format(*pins.PYTHON)
    if chosen is not None:
        if why := _why_not(chosen):
            raise TunefaError(f"{chosen} cannot be used: {why}: name a CPython {wanted}")
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
    """Yields this Python if it is one, the one on PATH, then those of pyenv, uv and conda."""
    wanted = "{}.{}".format(*pins.PYTHON)
    if sys.version_info[:2] == pins.PYTHON:
        yield sys.executable
    if on_path := shutil.which(f"python{wanted}"):
        yield on_path
    for place in _PLACES:
        pattern = os.path.expanduser(place.replace("{}", wanted))
        yield from (str(path) for path in sorted(Path("/").glob(pattern.lstrip("/"))))


def _why_not(python: str) -> str | None:
    """Returns why a Python cannot be used; None if it can."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({error})"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return f"it cannot make environments ({last})"
    said = done.stdout.split()
    if said == ["CPython", *map(str, pins.PYTHON)]:
        return None
    return f"it is {said[0]} {'.'.join(said[1:])}" if len(said) == 3 else "it is not a Python"
