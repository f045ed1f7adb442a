"""Linalg through the vendor's pipeline, up to and with the planning of memory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tunefa.compile.ascend import compiler_report
from tunefa.compile.ascend.compiler_report import CompilerReport, Memory, Output
from tunefa.compile.ascend.toolchain import SETUP, Toolchain

LIMIT_S = 60.0
"""Of one run; a tile takes 0.1 to 0.5 s on 910B, a few on 950."""

_ALWAYS = (
    "--enable-auto-bind-sub-block=True",
    "--enable-hfusion-compile=true",
    "--enable-hivm-compile=true",
    "--enable-triton-kernel-compile=true",
    "--enable-memory-display",
)
# The last IR, behind the planning of memory: it tells the size of the workspace.
_PRINT = "--mlir-print-ir-after=convert-hivm-to-std"
_ONE_THREAD = "--mlir-disable-threading"

Flags = Mapping[str, object]
"""By name, without the dashes; a bool is written as True or False."""


def compile(tools: Toolchain, ir: str, target: str, flags: Flags) -> CompilerReport:
    """What the compiler says of the kernel `ir` (MLIR, linalg) for a target such as Ascend910B3.

    It runs with one thread: with more it dies in about 1 of 100 runs, and which of several failures
    it reports changes from run to run. One thread stops at the first function that does not fit,
    though, the cube's before the vector cores', so an overflow of L1 or L0C is looked at again with
    threads, for what the UB is asked for. A crash is tried once more, and is no overflow.
    """
    command = [*_command(tools, target, flags), _ONE_THREAD, _PRINT]
    start = time.perf_counter()
    try:
        output = _run(command, ir)
        if compiler_report.from_output(output).status == "crash":
            output = _run(command, ir)
        found = compiler_report.from_output(output)
        if found.status == "overflow" and not found.memories.get("ub", Memory()).overflows:
            # A crash here takes nothing away from what is known.
            found = compiler_report.from_output(output, [_run(_command(tools, target, flags), ir)])
    except subprocess.TimeoutExpired:
        reason = f"the compiler took over {LIMIT_S:.0f} s"
        return CompilerReport("timeout", reason, seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    if found.status != "fits":
        return replace(found, seconds=seconds)
    workspace, code = (
        compiler_report.workspace_bytes(output.stderr),
        compiler_report.code(output.stderr),
    )
    return replace(found, workspace_bytes=workspace, code=code, seconds=seconds)


def why_not(tools: Toolchain, target: str) -> str | None:
    """Why this compiler does not serve a target, and what to do; None if it does."""
    if not _is_a5(target):
        return None
    advice = f"run '{SETUP} --version 1.2.0'"
    if tools.short_version == "1.1.0":  # an assertion of its own fails, whatever the tile
        return f"bishengir-compile-a5 1.1.0 dies of every kernel for {target}: {advice}"
    if not _a5(tools).is_file():
        return f"{tools.compiler} has no bishengir-compile-a5 beside it for {target}: {advice}"
    return None


def key(tools: Toolchain, ir: str, target: str, flags: Flags) -> str:
    """Names everything that a verdict depends on: equal keys, equal verdicts."""
    seen = (tools.version, tools.front_end, ir, target, *map(repr, sorted(flags.items())))
    return hashlib.sha256("\0".join(seen).encode()).hexdigest()


def _command(tools: Toolchain, target: str, flags: Flags) -> list[str]:
    """For any kernel."""
    compiler = _a5(tools) if _is_a5(target) else tools.compiler
    given = [f"--{name}={value}" for name, value in flags.items()]
    return [str(compiler), "kernel.mlir", f"--target={target}", *_ALWAYS, *given, "-o", "kernel.o"]


def _is_a5(target: str) -> bool:
    """Whether it is a 950 or what comes after it, which have a compiler of their own."""
    return "95" in target.removeprefix("Ascend910_")


def _a5(tools: Toolchain) -> Path:
    return tools.compiler.with_name("bishengir-compile-a5")


def _run(command: Sequence[str], ir: str) -> Output:
    """One run, in a folder of its own: the compiler writes its plans where it is started.

    It stays in this process's group: who ends a worker that compiles ends the compiler, too. Raises
    subprocess.TimeoutExpired, with the compiler gone.
    """
    with tempfile.TemporaryDirectory(prefix=_prefix(os.getppid())) as folder:
        place = Path(folder)
        (place / "kernel.mlir").write_text(ir, encoding="utf-8")
        path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        process = subprocess.Popen(
            command,
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PATH": path},  # where -a5 looks for its own parts
        )
        try:
            stderr = process.communicate(timeout=LIMIT_S)[1]
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        log = stderr.decode(errors="replace")
        return Output(process.returncode, log, tuple(_plans(place)))


def clean() -> None:
    """Removes what compilers left that were ended in workers of this process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(os.getpid())}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(parent: int) -> str:
    """Of the folders of the workers of one process."""
    return f"tunefa-ascend-{parent}-"


def _plans(place: Path) -> Iterator[object]:
    for path in sorted(place.glob("memory_info_*.json")):
        yield compiler_report.read_plan(path.read_text(encoding="utf-8", errors="replace"))
