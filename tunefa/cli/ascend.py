"""`tunefa ascend`: installs the compiler for Huawei's NPUs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tunefa.cli.reports import text
from tunefa.cli.reports.download import Reporter
from tunefa.compile.ascend import pins, toolchain
from tunefa.compile.ascend.install import Installer


@click.group("ascend")
def command() -> None:
    """Install the compiler for Huawei's Ascend NPUs, which needs no NPU.

    Needs no GPU and no NPU. With --json, a command prints one JSON document.
    """


@command.command("setup")
@click.option(
    "--version",
    type=click.Choice(pins.COMPILERS),
    default=pins.COMPILERS[0],
    show_default=True,
    help="Version of the compiler, ascendnpu-ir. Which configs fit depends on it.",
)
@click.option(
    "--compiler",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Use this bishengir-compile, for example that of CANN, instead of downloading one.",
)
@click.option("--python", metavar="PATH", help="A CPython 3.11.  [default: search for one]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def setup(version: str, compiler: Path | None, python: str | None, as_json: bool) -> None:
    """Download the compiler, about 200 MB from the package index, into its own environment.

    It is not installed in tunefa's environment, where it would overwrite Triton. If the command is
    interrupted, run it again: complete files are kept, and each file is checked.

    Needs no GPU and no NPU, but a CPython 3.11 and about 700 MB of disk.
    """
    start = time.monotonic()
    if compiler is not None:
        toolchain.version_of(compiler)  # before anything is fetched
    with Reporter() as report:
        installer = Installer(report)
        installer.front_end(python)
        toolchain.choose(compiler if compiler is not None else installer.compiler(version))
    state = {**toolchain.state(), "seconds": round(time.monotonic() - start, 1)}
    if as_json:
        text.emit_json(state)
        return
    out = text.console()
    for name in ("front_end", "compiler"):
        out.print(f"{state[name]}", soft_wrap=True)
    out.print(f"in {state['folder']}", soft_wrap=True)
    line = text.command("tunefa", "search", "--arch", "ascend910b3", "--seqlen", "8192")
    text.print_command(out, "Next: search, for example", line)
