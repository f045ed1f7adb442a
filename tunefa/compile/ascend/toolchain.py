"""The installed front end and compiler: where they are, and which versions."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefa import assets
from tunefa.compile.ascend import pins
from tunefa.errors import TunefaError

SETUP = "tunefa ascend setup"
READY = "ready.json"
"""The file that marks an installed folder as complete. It is written last."""
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class Toolchain:
    """The installed front end and compiler."""

    python: Path
    """The Python of the front end's environment."""
    front_end: str
    """The version of triton-ascend."""
    compiler: Path
    """The path of bishengir-compile."""
    version: str
    """The version that the compiler reports: "1.1.0 (428ab8fdab46 2026-04-30)"."""

    @property
    def short_version(self) -> str:
        """The first part of `version`: "1.1.0"."""
        return self.version.split(" ", 1)[0]


def folder() -> Path:
    """Returns the folder of all that `tunefa ascend setup` installs."""
    return assets.home() / "ascend"


def front_end_folder() -> Path:
    """Returns the folder of triton-ascend's environment."""
    return folder() / f"front_end-{pins.FRONT_END}"


def compiler_folder(version: str) -> Path:
    """Returns the folder of one version of ascendnpu-ir."""
    return folder() / f"compiler-{version}"


def python() -> Path:
    """Returns the path of the front end's Python, which may not exist yet."""
    return front_end_folder() / "bin" / "python"


def is_ready(path: Path) -> bool:
    """Returns whether a folder of `tunefa ascend setup` is complete."""
    return (path / READY).is_file()


def installed() -> Toolchain:
    """Returns what is installed.

    Raises TunefaError, with the command that installs it, if a part is missing.
    """
    if not is_ready(front_end_folder()):
        raise TunefaError(f"no compiler found: Ascend's front end is not installed: run '{SETUP}'")
    chosen = _chosen()
    if chosen is None:
        raise TunefaError(f"no compiler found: Ascend's compiler is not installed: run '{SETUP}'")
    compiler = Path(chosen["path"])
    if not compiler.is_file():
        raise TunefaError(f"no compiler found: {compiler} is missing: run '{SETUP}'")
    return Toolchain(python(), pins.FRONT_END, compiler, chosen["version"])


def choose(compiler: Path) -> str:
    """Makes the file at `compiler` the one that is used, and returns its version.

    Raises TunefaError if it is not a bishengir-compile, or does not run.
    """
    version = version_of(compiler)
    folder().mkdir(parents=True, exist_ok=True)
    text = json.dumps({"path": str(compiler.absolute()), "version": version})
    temporary = folder() / ".compiler.json"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder() / "compiler.json")
    return version


@functools.cache  # another version has another path
def version_of(compiler: Path) -> str:
    """Returns the version that a compiler reports. Raises TunefaError if it does not report one."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TunefaError(f"{compiler} does not run ({error}): name a bishengir-compile") from error
    first = (done.stdout.strip().splitlines() or [""])[0]
    found = _VERSION.search(first)
    if not first.startswith("bishengir-compile") or found is None:
        raise TunefaError(f"{compiler} is not a bishengir-compile: it prints {first[:80]!r}")
    made = re.search(r"([0-9a-f]{12}) (\d{4}-\d\d-\d\d)", first)
    return f"{found[0]} ({made[1]} {made[2]})" if made else found[0]


def state() -> dict[str, Any]:
    """Returns plain data for `tunefa doctor`: what is installed, and any problem with it."""
    there = [version for version in pins.COMPILERS if is_ready(compiler_folder(version))]
    report: dict[str, Any] = {"folder": str(folder()), "compilers_installed": there}
    try:
        found = installed()
    except TunefaError as error:
        return {**report, "front_end": None, "compiler": None, "path": None, "problem": str(error)}
    return {
        **report,
        "front_end": f"triton-ascend {found.front_end}",
        "compiler": f"bishengir-compile {found.version}",
        "path": str(found.compiler),
        "problem": None,
    }


def _chosen() -> Mapping[str, str] | None:
    """Returns what `choose` wrote; None if there is nothing, or it is damaged."""
    try:
        data = json.loads((folder() / "compiler.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(data, dict) and {"path", "version"} <= data.keys()
    return data if whole else None
