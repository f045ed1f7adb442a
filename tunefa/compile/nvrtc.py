"""NVRTC: NVIDIA's compiler of CUDA C++ as a library, with ptxas inside.

It comes with PyTorch's CUDA wheels and as `nvidia-cuda-nvrtc`; cuda-bindings finds either and calls
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

_HOW = "pip install 'tunefa[cuda]', which brings cuda-bindings and nvidia-cuda-nvrtc"
_CACHES_FROM = 12, 9
"""From this release on NVRTC keeps what it compiled where the driver keeps its own. Of what it
takes from there it says neither registers nor spills, nor that WGMMA was serialized."""
_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")
_PLACE = re.compile(r"^(.+?)\((\d+)\): ", re.MULTILINE)
_ERROR = re.compile(r"\berror\b|\bfatal\b")
# ptxas keeps WGMMAs from overlapping where it cannot prove registers free, and only says so.
_SERIALIZED = re.compile(r"\(C751[0-5]\)[^\n]*")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Installed:
    """The NVRTC that is here."""

    version: str
    """That of its wheel, or "13.0" where it comes from elsewhere."""
    path: str
    """The library; empty where cuda-bindings does not say."""
    targets: tuple[int, ...]
    """Chips it compiles for, as 90 for compute capability 9.0."""


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel, and what the compiler says of it."""

    image: bytes
    resources: Resources
    """Of its shared memory, that which it declares itself."""


@functools.cache
def installed() -> Installed:
    """Finds and loads it, which takes a tenth of a second.

    Raises TunefaError, with what to install, where there is none.
    """
    nvrtc = _bindings()
    try:
        release = _release()
        targets = _done(nvrtc.nvrtcGetSupportedArchs(), "nvrtcGetSupportedArchs")[-1]
    except RuntimeError as error:  # cuda-bindings are there, the library is not
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TunefaError(f"no compiler found: NVRTC cannot be loaded ({first}): {_HOW}") from error
    path = _path()
    return Installed(_version("{}.{}".format(*release), path), path, tuple(targets))


def compile(
    name: str, sources: Mapping[str, str], function: str, options: tuple[str, ...]
) -> Cubin:
    """The kernel `function` of `sources[name]`, which may include the others by their names.

    Raises CompileError with the first diagnostic, as file:line, where it does not compile.
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
    """What ptxas says of a kernel under `-v`; None for what it does not say."""
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
    """The first line of a log that says what is wrong, in one line of at most 300 characters."""
    line = next((line for line in log.splitlines() if _ERROR.search(line)), "")
    return " ".join(_PLACE.sub(r"\1:\2: ", line).split())[:300]


def _release() -> tuple[int, int]:
    """(major, minor) of the library."""
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
    """What a call returned beside its status. Raises RuntimeError where that is no success."""
    status, *values = result
    if status.value:
        raise RuntimeError(f"{name} of NVRTC says {status.name}")
    return tuple(values)


def _read(program: Any, what: str) -> bytes:
    """The log or the cubin of a program, without the zero behind a text."""
    nvrtc = _bindings()
    (size,) = _done(getattr(nvrtc, f"nvrtcGet{what}Size")(program), what)
    text = bytes(size)  # which it writes into; one of zeros, for Python shares those of a byte
    _done(getattr(nvrtc, f"nvrtcGet{what}")(program, text), what)
    return text.rstrip(b"\0") if what == "ProgramLog" else text


def _path() -> str:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return load_nvidia_dynamic_lib("nvrtc").abs_path or ""
    except (ImportError, RuntimeError):
        return ""


def _version(release: str, path: str) -> str:
    """The version of the wheel that the library lies in, or what it says itself."""
    for wheel in _WHEELS:
        try:
            found = metadata.distribution(wheel)
        except metadata.PackageNotFoundError:
            continue
        inside = path and Path(str(found.locate_file(""))) in Path(path).parents
        if inside and found.version.startswith(f"{release}."):
            return found.version
    return release
