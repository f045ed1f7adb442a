"""Fixtures of the tests of the compiler for NPUs."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cuda_on_cpu
from tests.support.compiler_index import COMPILER, made
from tunefa.compile.ascend import install, pins


@pytest.fixture(scope="session")
def environment() -> Path:
    """An environment as the front end's begins: pip takes 5 s to come into one. The processes of
    one session share it."""
    place = Path(os.environ[cuda_on_cpu.SHARED], "environment")
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            whole = place.with_suffix(".incomplete")
            install._run([sys.executable, "-m", "venv", whole], "the environment cannot be made")
            whole.rename(place)
    return place


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Path) -> Iterator[Path]:
    """A folder of wheels in place of the index, for the Python that runs this. Environments are
    copies of one."""
    run = install._run

    def run_or_copy(command: list[str | Path], failure: str) -> None:
        if command[:-1] == [Path(sys.executable), "-m", "venv"]:
            shutil.copytree(environment, command[-1], symlinks=True)
        else:
            run(command, failure)

    monkeypatch.setattr(install, "_run", run_or_copy)
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
