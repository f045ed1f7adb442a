"""An index of wheels of a few bytes in place of the package index, and what sets them up."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner, Result

from tunefa.cli import main
from tunefa.compile.ascend import toolchain
from tunefa.compile.ascend.install import Installer
from tunefa.compile.ascend.pins import Wheel

VERSION = "bishengir-compile 1.1.0 (/usr1/BiSheng/AscendNPU-IR/bishengir 428ab8fdab46 2026-04-30)"

COMPILER = f"#!/bin/sh\necho '{VERSION}'\n"


class Steps(list[str]):
    """The steps that were done; stops as Ctrl-C does at the step that begins with `until`."""

    until = "never"

    def __call__(self, step: str, done: int, total: int) -> None:
        if step.startswith(self.until):
            raise KeyboardInterrupt
        if step not in self:
            self.append(step)


def made(folder: Path, wheel: Wheel, path: str, content: str) -> Wheel:
    """A wheel of one file, and the pin for it."""
    stem = f"{wheel.name.replace('-', '_')}-{wheel.version}"
    about = f"{stem}.dist-info"
    files = {
        path: content,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {wheel.name}\nVersion: {wheel.version}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={digest(text)},{len(text)}\n" for name, text in files.items())
    target = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
    return replace(wheel, sha256={"any": hashlib.sha256(target.read_bytes()).hexdigest()})


def digest(text: str) -> str:
    """Returns the digest as a RECORD spells it."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def setup(steps: Steps, version: str = "1.1.0") -> None:
    """Runs the steps of the command."""
    installer = Installer(steps)
    installer.front_end(sys.executable)
    toolchain.choose(installer.compiler(version))


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["ascend", "setup", *arguments], prog_name="tunefa")
    assert result.exit_code == code, result.output
    return result
