"""The back end: bishengir-compile compiles linalg, up to the memory plan."""

from __future__ import annotations

import hashlib
import os
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
"""The time limit of one run. A tile takes 0.1 to 0.5 s for a 910B, and a few s for a 950."""

_ALWAYS = (
    "--enable-auto-bind-sub-block=True",
    "--enable-hfusion-compile=true",
    "--enable-hivm-compile=true",
    "--enable-triton-kernel-compile=true",
    "--enable-memory-display",
)
# Prints the last IR, after the memory plan, which has the size of the workspace.
_PRINT = "--mlir-print-ir-after=convert-hivm-to-std"
_ONE_THREAD = "--mlir-disable-threading"

Flags = Mapping[str, object]
"""Flags of the compiler by name, without dashes. A bool is written as True or False."""


def compile(tools: Toolchain, ir: str, target: str, flags: Flags) -> CompilerReport:
    """Compiles the kernel `ir` (MLIR, linalg) for a target such as Ascend910B3.

    The compiler runs with one thread. With more threads, it crashes in about 1 of 100 runs, and the
    failure that it reports first varies. But with one thread it stops at the first function that
    does not fit, and the function of the cube unit comes before that of the vector cores. So after
    an overflow of L1 or L0C it runs again with threads, to learn what the UB needs. After a crash
    it runs a second time.
    """
    command = [*_command(tools, target, flags), _ONE_THREAD, _PRINT]
    start = time.perf_counter()
    try:
        output = _run(command, ir)
        if compiler_report.from_output(output).status == "crash":
            output = _run(command, ir)
        found = compiler_report.from_output(output)
        if found.status == "overflow" and not found.memories.get("ub", Memory()).overflows:
            # If this run crashes, the report of the first run still counts.
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
    """Returns why this compiler does not support a target, and what to do; None if it does."""
    if not _is_a5(target):
        return None
    advice = f"run '{SETUP} --version 1.2.0'"
    if tools.short_version == "1.1.0":  # one of its assertions fails for every tile
        return f"bishengir-compile-a5 1.1.0 crashes with every kernel for {target}: {advice}"
    if not _a5(tools).is_file():
        return f"{tools.compiler} has no bishengir-compile-a5 beside it for {target}: {advice}"
    return None


def key(tools: Toolchain, ir: str, target: str, flags: Flags) -> str:
    """Returns a hash of all that a report depends on."""
    seen = (tools.version, tools.front_end, ir, target, *map(repr, sorted(flags.items())))
    return hashlib.sha256("\0".join(seen).encode()).hexdigest()


def _command(tools: Toolchain, target: str, flags: Flags) -> list[str]:
    """Returns the command line, which is the same for all kernels."""
    compiler = _a5(tools) if _is_a5(target) else tools.compiler
    given = [f"--{name}={value}" for name, value in flags.items()]
    return [str(compiler), "kernel.mlir", f"--target={target}", *_ALWAYS, *given, "-o", "kernel.o"]


def _is_a5(target: str) -> bool:
    """Returns whether the target is a 950 or later, which have another compiler."""
    return "95" in target.removeprefix("Ascend910_")


def _a5(tools: Toolchain) -> Path:
    return tools.compiler.with_name("bishengir-compile-a5")


def _run(command: Sequence[str], ir: str) -> Output:
    """Runs the compiler in a temporary folder, because it writes its plans to the current folder.

    Raises subprocess.TimeoutExpired after LIMIT_S, when the compiler has been killed.
    """
    with tempfile.TemporaryDirectory(prefix="tunefa-ascend-") as folder:
        place = Path(folder)
        (place / "kernel.mlir").write_text(ir, encoding="utf-8")
        path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        process = subprocess.Popen(
            command,
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PATH": path},  # where bishengir-compile-a5 finds its parts
        )
        try:
            stderr = process.communicate(timeout=LIMIT_S)[1]
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        log = stderr.decode(errors="replace")
        return Output(process.returncode, log, tuple(_plans(place)))


def _plans(place: Path) -> Iterator[object]:
    for path in sorted(place.glob("memory_info_*.json")):
        yield compiler_report.read_plan(path.read_text(encoding="utf-8", errors="replace"))
