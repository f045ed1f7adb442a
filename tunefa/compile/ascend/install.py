"""Downloads and installs front end and compiler. Each step can be repeated."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tunefa.compile.ascend import find_python, pins, toolchain
from tunefa.compile.ascend.pins import Wheel
from tunefa.errors import TunefaError

_EVERY_S = 0.2
_TROUBLES = {
    "DO NOT MATCH THE HASHES": "the downloaded file is not the one that tunefa expects: try again, "
    "or without the mirror that PIP_INDEX_URL names",
    "No space left on device": "the disk is full: make room (about 900 MB are needed)",
    "No matching distribution": "the package index does not have it: a mirror may be outdated, "
    "PIP_INDEX_URL=https://pypi.org/simple is the public index",
}
_BROKEN_OFF = ("Connection", "Retrying (", "timed out", "IncompleteRead", "ProxyError")
_UNREACHABLE = (
    "the package index cannot be reached, or the connection broke: connect this machine to the "
    "network (HTTPS_PROXY names a proxy, PIP_INDEX_URL a mirror) and run it again: complete files "
    "are kept"
)

ShowProgress = Callable[[str, int, int], None]
"""A function that shows progress: (what is being done, bytes done, bytes in total)."""


@dataclass(frozen=True)
class Installer:
    """The steps of `tunefa ascend setup`. They raise TunefaError, with what to do, if they fail."""

    report: ShowProgress

    def front_end(self, python: str | None) -> None:
        """Makes the environment of triton-ascend, unless a complete one exists."""
        place = toolchain.front_end_folder()
        if toolchain.is_ready(place) and _is_whole(place):
            return
        chosen = find_python.find(python)
        _check_machine(pins.FRONT_END_WHEELS)
        shutil.rmtree(place, ignore_errors=True)
        self.report("making an environment", 0, 0)
        _run([chosen, "-m", "venv", place], "the environment cannot be made")
        for wheel in pins.FRONT_END_WHEELS:
            self._fetch(wheel)
        self.report("installing the front end", 0, 0)
        self._install(pins.FRONT_END_WHEELS, [])
        _finish(place)

    def compiler(self, version: str) -> Path:
        """Installs one version of the compiler, unless it is complete, and returns its path."""
        place, wheel = toolchain.compiler_folder(version), pins.compiler(version)
        path = place / "ascendnpuir" / "bin" / "bishengir-compile"
        if toolchain.is_ready(place) and _is_whole(place):
            return path
        _check_machine([wheel])
        shutil.rmtree(place, ignore_errors=True)
        self._fetch(wheel)
        self.report(f"unpacking compiler {version}", 0, 0)
        self._install([wheel], ["--target", str(place)])
        _finish(place)
        return path

    def _fetch(self, wheel: Wheel) -> None:
        """Downloads a wheel, unless it is complete. pip compares its hash."""
        temporary, wheels = toolchain.folder() / "partial", _wheels()
        if _is_there(wheel):
            return
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        wheels.mkdir(exist_ok=True)
        requirements = _requirements([wheel])
        command = [*_pip("download"), "--dest", str(wheels), "--requirement", str(requirements)]
        name, total = f"{wheel.name} {wheel.version}", wheel.megabytes * 10**6
        # pip downloads into a temporary folder first, whose size shows the progress.
        environment = {**os.environ, "TMPDIR": str(temporary)}
        with (temporary / "log").open("w+") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            try:
                while process.poll() is None:
                    self.report(f"fetching {name}", min(total, _size(temporary)), total)
                    time.sleep(_EVERY_S)
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            said = log.read()
        shutil.rmtree(temporary, ignore_errors=True)
        if process.returncode:
            raise TunefaError(f"{name} cannot be fetched: {_trouble(said)}")
        self.report(f"fetching {name}", total, total)

    def _install(self, wheels: Iterable[Wheel], options: list[str]) -> None:
        """Installs from the downloaded files, and removes them."""
        files = ["--no-index", "--find-links", str(_wheels())]
        requirements = ["--requirement", str(_requirements(wheels))]
        _run([*_pip("install"), *files, *options, *requirements], "pip cannot install it")
        shutil.rmtree(_wheels())


def _pip(verb: str) -> list[str]:
    """Returns a command of the front end's pip, which accepts only wheels with known hashes."""
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return [str(toolchain.python()), "-I", "-m", "pip", verb, *quiet, *options]


def _wheels() -> Path:
    return toolchain.folder() / "wheels"


def _is_there(wheel: Wheel) -> bool:
    """Returns whether an earlier run has downloaded the complete wheel."""
    expected = bytes.fromhex(wheel.of(platform.machine()) or "")
    as_recorded = base64.urlsafe_b64encode(expected).rstrip(b"=").decode()
    return any(_digest(path, "sha256") == as_recorded for path in _wheels().glob("*.whl"))


def _requirements(wheels: Iterable[Wheel]) -> Path:
    """Writes a requirements file, because pip's command line does not accept hashes."""
    path = toolchain.folder() / "requirements.txt"
    lines = [wheel.requirement(platform.machine()) for wheel in wheels]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _check_machine(wheels: Iterable[Wheel]) -> None:
    machine = platform.machine()
    for wheel in wheels:
        if platform.system() != "Linux" or wheel.of(machine) is None:
            known = "Linux on x86_64 or aarch64"
            raise TunefaError(f"there is no {wheel.name} for this machine, only for {known}")


def _run(command: list[str | Path], failure: str) -> None:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    if done.returncode:
        raise TunefaError(f"{failure}: {_trouble(done.stdout + done.stderr)}")


def _trouble(said: str) -> str:
    """Returns what went wrong, and what to do, from pip's output."""
    if any(sign in said for sign in _BROKEN_OFF):  # pip then also says that it found no version
        return _UNREACHABLE
    known = next((words for sign, words in _TROUBLES.items() if sign in said), None)
    if known is not None:
        return known
    return (said.strip().splitlines() or ["pip gives no reason"])[-1][:300]


def _size(place: Path) -> int:
    """Returns the bytes of all files below a folder, of which any may vanish meanwhile."""
    total = 0
    for folder, _, files in os.walk(place):  # unlike rglob, it passes over a folder that is gone
        for name in files:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _finish(place: Path) -> None:
    """Checks the installed files, and marks the folder as complete."""
    if not _is_whole(place):
        raise TunefaError(f"{place} is damaged right after it was installed: check the disk")
    (place / toolchain.READY).write_text(json.dumps({"at": time.time()}), encoding="utf-8")


def _is_whole(place: Path) -> bool:
    """Returns whether all files of the packages in a folder have the hashes in RECORD."""
    records = list(place.glob("**/*.dist-info/RECORD"))
    return bool(records) and all(_matches(record) for record in records)


def _matches(record: Path) -> bool:
    """Returns whether the files of one package have the hashes in its RECORD."""
    root = record.parent.parent
    with record.open(newline="", encoding="utf-8") as file:
        for name, digest, _ in csv.reader(file):
            if not digest or name.startswith("../"):  # RECORD itself, caches, scripts
                continue
            algorithm, _, expected = digest.partition("=")
            if _digest(root / name, algorithm) != expected:
                return False
    return True


def _digest(path: Path, algorithm: str) -> str:
    """Returns the hash of a file in RECORD's format; empty if it cannot be read."""
    found = hashlib.new(algorithm)
    try:
        with path.open("rb") as content:
            while block := content.read(1 << 20):
                found.update(block)
    except OSError:
        return ""
    return base64.urlsafe_b64encode(found.digest()).rstrip(b"=").decode()
