"""The attacks that run when they are asked for, and searches that are attacked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.own_kernels import OwnKernels
from tests.support.processes import environment


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the attacks that take minutes, unless `-m` speaks of them."""
    if "attack" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("attack")]
    if long:
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)


PROGRAM = """
from tests.support.own_kernels import replacements
for replaced in replacements({folder!r}):
    setattr(*replaced)
from tunefa.cli import main
main({words!r})
"""


class Victims:
    """Processes of tunefa that a test starts with its own kernels, to kill them."""

    def __init__(self, own_kernels: OwnKernels, home: Path) -> None:
        self._folder, self._home = own_kernels.folder, home
        self._started: list[subprocess.Popen[str]] = []

    def start(self, mark: str, *words: str) -> subprocess.Popen[str]:
        """Starts `tunefa` with these words. Its processes have `mark` in their environment."""
        program = PROGRAM.format(folder=str(self._folder), words=list(words))
        victim = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(self._home), mark: "1"},
        )
        self._started.append(victim)
        return victim

    def journals(self) -> list[Path]:
        """The journals of their searches."""
        return sorted((self._home / "journals").glob("*.jsonl"))

    def end(self) -> None:
        for victim in self._started:
            victim.kill()
            victim.communicate()


@pytest.fixture
def victims(own_kernels: OwnKernels, tmp_path: Path) -> Iterator[Victims]:
    made = Victims(own_kernels, tmp_path / "home")
    yield made
    made.end()
