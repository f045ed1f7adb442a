"""Huawei's compiler, where `tunefa ascend setup` has put it on this machine."""

from __future__ import annotations

import pytest

from tunefa.compile.ascend import pins, toolchain
from tunefa.compile.ascend.toolchain import Toolchain
from tunefa.errors import TunefaError

THERE = toolchain.folder()
"""The user's: asked before any test has a home of its own."""
try:
    INSTALLED: Toolchain | None = toolchain.installed()
    WHY = ""
except TunefaError as error:
    INSTALLED, WHY = None, str(error)

needs_compiler = pytest.mark.skipif(INSTALLED is None, reason=WHY)


def versions_there() -> list[str]:
    """The compilers that `tunefa ascend setup` has made, or the one that is used."""
    if INSTALLED is None:
        return ["none"]
    made = [v for v in pins.COMPILERS if toolchain.is_ready(THERE / f"compiler-{v}")]
    return made or [INSTALLED.short_version]


def choose(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes it the compiler of this process."""
    path = THERE / f"compiler-{version}" / "ascendnpuir" / "bin" / "bishengir-compile"
    assert INSTALLED is not None
    compiler = path if path.is_file() else INSTALLED.compiler
    tools = Toolchain(
        INSTALLED.python, INSTALLED.front_end, compiler, toolchain.version_of(compiler)
    )
    monkeypatch.setattr(toolchain, "installed", lambda: tools)
