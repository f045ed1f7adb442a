"""NVRTC: NVIDIA's compiler for CUDA C++, a library that includes ptxas.

It is in PyTorch's CUDA wheels and in the package `nvidia-cuda-nvrtc`; cuda-bindings finds and calls
it. It needs no driver, no CUDA toolkit and no host compiler.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tunefa.compile.contract import CompileError
from tunefa.errors import TunefaError
from tunefa.spec.trial import Resources

_HOW = "pip install 'cuda-bindings>=12.9' 'nvidia-cuda-nvrtc>=13'"
"""These are the requirements of the extra `cuda` in pyproject.toml."""
_CACHES_FROM = 12, 9
"""The first release in which NVRTC has a cache on disk. For a cached kernel it does not report
registers, spills and serialized WGMMAs, so the cache is switched off."""
_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")
_PLACE = re.compile(r"^(.+?)\((\d+)\): ", re.MULTILINE)
_ERROR = re.compile(r"\berror\b|\bfatal\b")
# ptxas serializes WGMMAs if it cannot prove that their registers are free, and only warns.
_SERIALIZED = re.compile(r"\(C751[0-5]\)[^\n]*")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Installed:
    """The NVRTC that is installed."""

    version: str
    """The version of its wheel; without one, such as "13.0"."""
    path: str
    """The path of the library; empty if cuda-bindings does not know it."""
    targets: tuple[int, ...]
    """The compute capabilities that it compiles for: 90 for 9.0."""


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel, and the resources that the compiler reports."""

    image: bytes
    resources: Resources
    """`smem_bytes` is static shared memory only."""


@functools.cache
def installed() -> Installed:
    """Finds and loads NVRTC, which takes 0.1 s.

    Raises TunefaError, with the command that installs it, if there is none.
    """
    nvrtc = _bindings()
    try:
        release = _release()
        targets = _done(nvrtc.nvrtcGetSupportedArchs(), "nvrtcGetSupportedArchs")[-1]
    except RuntimeError as error:  # cuda-bindings is installed, the library is not
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TunefaError(f"no compiler found: NVRTC cannot be loaded ({first}): {_HOW}") from error
    path = _path()
    return Installed(_version("{}.{}".format(*release), path), path, tuple(targets))


def compile(
    name: str, sources: Mapping[str, str], function: str, options: tuple[str, ...]
) -> Cubin:
    """Compiles the kernel `function` of `sources[name]`, which may include the other sources.

    Raises CompileError, with the first error and its file and line, if it does not compile.
    """
    nvrtc = _bindings()
    if _release() >= _CACHES_FROM:
        options = (*options, "--no-cache")
    texts = [sources[each].encode() for each in sources if each != name]
    names = [each.encode() for each in sources if each != name]
    (program,) = _done(
        nvrtc.nvrtcCreateProgram(
            sources[name].encode(), name.encode(), len(names), texts, names
        ), "nvrtcCreateProgram",
    )  # fmt: skip
    try:
        (status,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        log = _read(program, "ProgramLog").decode(errors="replace")
        if status.value:
            raise CompileError(first_error(log) or status.name)
        if serialized := _SERIALIZED.search(log):
            raise CompileError(f"wgmma serialized: {serialized[0]}"[:300])
        return Cubin(_read(program, "CUBIN"), resources(log, function))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def resources(log: str, function: str) -> Resources:
    """Returns the resources of a kernel from ptxas' log with `-v`; None if the log lacks one."""
    _, _, own = log.partition(f"Compiling entry function '{function}'")
    own = own.partition("Compiling entry function")[0]
    stack, registers, smem = (pattern.search(own) for pattern in (_STACK, _REGISTERS, _SMEM))
    return Resources(
        smem_bytes=int(smem[1]) if smem else 0,
        registers=int(registers[1]) if registers else None,
        stack_bytes=int(stack[1]) if stack else None,
        spill_bytes=int(stack[2]) if stack else None,
    )


def first_error(log: str) -> str:
    """Returns the first error in a log, as one line of at most 300 characters."""
    line = next((line for line in log.splitlines() if _ERROR.search(line)), "")
    return " ".join(_PLACE.sub(r"\1:\2: ", line).split())[:300]


def _release() -> tuple[int, int]:
    """Returns (major, minor) of the library."""
    major, minor = _done(_bindings().nvrtcVersion(), "nvrtcVersion")
    return major, minor


def _bindings() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise TunefaError(
            f"no compiler found: cuda-bindings cannot be imported ({error}): {_HOW}"
        ) from error
    return nvrtc


def _done(result: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Returns a call's results without its status. Raises RuntimeError if the call failed."""
    status, *values = result
    if status.value:
        raise RuntimeError(f"{name} of NVRTC says {status.name}")
    return tuple(values)


def _read(program: Any, what: str) -> bytes:
    """Returns the log or the cubin of a program, without the zero at the end of a log."""
    nvrtc = _bindings()
    (size,) = _done(getattr(nvrtc, f"nvrtcGet{what}Size")(program), what)
    text = bytes(size)  # NVRTC writes into it, so it must not be an object that Python shares
    _done(getattr(nvrtc, f"nvrtcGet{what}")(program, text), what)
    return text.rstrip(b"\0") if what == "ProgramLog" else text


def _path() -> str:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return load_nvidia_dynamic_lib("nvrtc").abs_path or ""
    except (ImportError, RuntimeError):
        return ""


def _version(release: str, path: str) -> str:
    """Returns the version of the wheel with the library; if there is none, `release`."""
    for wheel in _WHEELS:
        try:
            found = metadata.distribution(wheel)
        except metadata.PackageNotFoundError:
            continue
        inside = path and Path(str(found.locate_file(""))) in Path(path).parents
        if inside and found.version.startswith(f"{release}."):
            return found.version
    return release
