"""Where the compiler's own environment is, and what state it is in."""

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
"""In each folder, written last: one without it is not whole."""
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class Toolchain:
    """What compiles kernels for Ascend."""

    python: Path
    """Of the front end's environment."""
    front_end: str
    """Version of triton-ascend."""
    compiler: Path
    """bishengir-compile."""
    version: str
    """What the compiler says of itself: "1.1.0 (428ab8fdab46 2026-04-30)"."""

    @property
    def short_version(self) -> str:
        """1.1.0 of "1.1.0 (428ab8fdab46 2026-04-30)"."""
        return self.version.split(" ", 1)[0]


def folder() -> Path:
    """Of everything that `setup` makes."""
    return assets.home() / "ascend"


def front_end_folder() -> Path:
    """The environment of triton-ascend."""
    return folder() / f"front_end-{pins.FRONT_END}"


def compiler_folder(version: str) -> Path:
    """Where one version of ascendnpu-ir is unpacked."""
    return folder() / f"compiler-{version}"


def python() -> Path:
    """The Python of the front end, there or not."""
    return front_end_folder() / "bin" / "python"


def is_ready(path: Path) -> bool:
    """Whether a folder of `setup` is whole."""
    return (path / READY).is_file()


def installed() -> Toolchain:
    """What is installed. Raises TunefaError, with the command that installs it, if nothing is."""
    if not is_ready(front_end_folder()):
        raise TunefaError(f"no compiler found: Ascend's front end is not there: run '{SETUP}'")
    chosen = _chosen()
    if chosen is None:
        raise TunefaError(f"no compiler found: Ascend's compiler is not there: run '{SETUP}'")
    compiler = Path(chosen["path"])
    if not compiler.is_file():
        raise TunefaError(f"no compiler found: {compiler} is gone: run '{SETUP}'")
    return Toolchain(python(), pins.FRONT_END, compiler, chosen["version"])


def choose(compiler: Path) -> str:
    """Makes it the compiler from now on, and returns its version.

    Raises TunefaError for a file that is no bishengir-compile or does not run.
    """
    version = version_of(compiler)
    folder().mkdir(parents=True, exist_ok=True)
    text = json.dumps({"path": str(compiler.absolute()), "version": version})
    temporary = folder() / ".compiler.json"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder() / "compiler.json")
    return version


@functools.cache  # of a file that an upgrade puts elsewhere
def version_of(compiler: Path) -> str:
    """What a compiler says of itself. Raises TunefaError where it says nothing of the kind."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TunefaError(f"{compiler} does not run ({error}): name a bishengir-compile") from error
    first = (done.stdout.strip().splitlines() or [""])[0]
    found = _VERSION.search(first)
    if not first.startswith("bishengir-compile") or found is None:
        raise TunefaError(f"{compiler} is no bishengir-compile: it says {first[:80]!r}")
    made = re.search(r"([0-9a-f]{12}) (\d{4}-\d\d-\d\d)", first)
    return f"{found[0]} ({made[1]} {made[2]})" if made else found[0]


def state() -> dict[str, Any]:
    """Plain data for `tunefa doctor`: what is there, and why it does not compile if it does not."""
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
    """What `choose` wrote; None where there is nothing whole."""
    try:
        data = json.loads((folder() / "compiler.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(data, dict) and {"path", "version"} <= data.keys()
    return data if whole else None
