"""`tunefa ascend setup`, with real environments and pip, and wheels of a few bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tunefa.cli import main
from tunefa.compile.ascend import find_python, pins, toolchain
from tunefa.compile.ascend.install import Installer
from tunefa.compile.ascend.pins import Wheel
from tunefa.errors import TunefaError

VERSION = "bishengir-compile 1.1.0 (/usr1/BiSheng/AscendNPU-IR/bishengir 428ab8fdab46 2026-04-30)"
COMPILER = f"#!/bin/sh\necho '{VERSION}'\n"


class Steps(list[str]):
    """What was done; stops as Ctrl-C does at the step that begins with `until`."""

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
    """As a RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels in place of the index, for the Python that runs this."""
    folder = tmp_path / "index"
    folder.mkdir()
    front = [made(folder, each, f"{each.name}.py", "") for each in pins.FRONT_END_WHEELS]
    path = "ascendnpuir/bin/bishengir-compile"
    compilers = {v: made(folder, pins.compiler(v), path, COMPILER) for v in pins.COMPILERS}
    monkeypatch.setattr(pins, "FRONT_END_WHEELS", tuple(front))
    monkeypatch.setattr(pins, "_COMPILERS", compilers)
    monkeypatch.setattr(pins, "PYTHON", sys.version_info[:2])
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    yield folder


def setup(steps: Steps, version: str = "1.1.0") -> None:
    """What the command does."""
    installer = Installer(steps)
    installer.front_end(sys.executable)
    toolchain.choose(installer.compiler(version))


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["ascend", "setup", *arguments], prog_name="tunefa")
    assert result.exit_code == code, result.output
    return result


def test_it_is_installed_once_and_mended_where_it_is_damaged(index: Path) -> None:
    steps = Steps()
    setup(steps)
    assert [step.split()[0] for step in steps] == [
        "making", "fetching", "fetching", "installing", "fetching", "unpacking"
    ]  # fmt: skip
    found = toolchain.installed()
    assert found.version == "1.1.0 (428ab8fdab46 2026-04-30)" and found.short_version == "1.1.0"
    assert toolchain.state()["compilers_installed"] == ["1.1.0"]
    assert not list(toolchain.folder().glob("wheels/*"))

    steps.clear()
    setup(steps)
    assert steps == []
    found.compiler.write_text("damaged")
    setup(steps)
    assert [step.split()[0] for step in steps] == ["fetching", "unpacking"]

    steps.clear()
    setup(steps, "1.2.0")
    assert [step.split()[0] for step in steps] == ["fetching", "unpacking"]
    assert toolchain.state()["compilers_installed"] == ["1.1.0", "1.2.0"]
    assert "compiler-1.2.0" in str(toolchain.installed().compiler)


def test_interrupted_it_goes_on_with_what_came_whole(index: Path) -> None:
    steps = Steps()
    steps.until = "installing"
    with pytest.raises(KeyboardInterrupt):
        setup(steps)
    with pytest.raises(TunefaError, match="front end is not installed: run 'tunefa ascend setup'"):
        toolchain.installed()
    for wheel in index.glob("triton*"):  # it is not asked for again
        wheel.unlink()
    steps.until = "unpacking"
    with pytest.raises(KeyboardInterrupt):
        setup(steps)
    with pytest.raises(TunefaError, match="compiler is not installed: run 'tunefa ascend setup'"):
        toolchain.installed()
    steps.until = "never"
    setup(steps)
    assert toolchain.installed().compiler.is_file()


def test_a_wheel_that_is_another_one_is_not_installed(index: Path) -> None:
    wheel = next(index.glob("triton*"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(TunefaError, match="the downloaded file is not the one that tunefa expects"):
        setup(Steps())
    assert toolchain.state()["front_end"] is None


def test_an_index_that_cannot_be_reached_is_said(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(TunefaError, match="index cannot be reached, or the connection broke"):
        setup(Steps())


def test_another_machine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(find_python, "find", lambda python: Path(sys.executable))
    with pytest.raises(TunefaError, match=r"no triton-ascend for this machine, only for Linux on"):
        Installer(Steps()).front_end(None)


def test_another_python_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "PYTHON", (3, 1))
    ours = "{}.{}".format(*sys.version_info[:2])
    with pytest.raises(TunefaError, match=f"it is CPython {ours}: name a CPython 3.1"):
        find_python.find(sys.executable)
    with pytest.raises(TunefaError, match="it does not run"):
        find_python.find(str(tmp_path / "python"))
    with pytest.raises(TunefaError, match="it is not a Python"):
        find_python.find("/bin/true")
    assert "name a CPython 3.1" in run("--python", sys.executable, code=1).output
    monkeypatch.setattr(find_python, "_candidates", lambda: iter([]))
    with pytest.raises(TunefaError, match=r"no CPython 3.1 found, .*name one with --python"):
        find_python.find()
    monkeypatch.setattr(find_python, "_candidates", lambda: iter([sys.executable]))
    with pytest.raises(TunefaError, match=rf"{sys.executable}: it is CPython {ours}"):
        find_python.find()


def test_a_compiler_that_is_there_is_taken(index: Path, tmp_path: Path) -> None:
    own = tmp_path / "bishengir-compile"
    own.write_text(COMPILER.replace("1.1.0", "1.3.0"))
    own.chmod(0o755)
    result = run("--compiler", str(own), "--python", sys.executable, "--json")
    assert json.loads(result.stdout)["compiler"].startswith("bishengir-compile 1.3.0")
    assert toolchain.installed().compiler == own
    assert "fetching triton-ascend 3.2.0 (54 MB)" in result.stderr
    own.unlink()
    with pytest.raises(TunefaError, match=f"{own} is missing: run 'tunefa ascend setup'"):
        toolchain.installed()


def test_a_compiler_of_another_kind_is_refused() -> None:
    result = run("--compiler", "/bin/true", code=1)
    assert "/bin/true is not a bishengir-compile" in result.output
    assert not toolchain.folder().exists()
