"""The compiler in Triton's wheel, and the programs beside it: ptxas and cuobjdump."""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tunefa.compile import machine_code, wgmma_descriptors
from tunefa.compile.contract import CompileError
from tunefa.errors import TunefaError
from tunefa.spec.trial import Resources

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_SPILL_STORE = re.compile(r"\bSTL(?:\.(\d+))?\b")


def installed() -> Any:
    """Triton. Raises TunefaError where it cannot be imported."""
    try:
        import triton
        import triton.backends.compiler
        import triton.compiler
    except ImportError as error:
        raise TunefaError(
            f"no compiler found: Triton cannot be imported ({error}): "
            f"pip install 'triton>=3.6,<3.10' (Linux)"
        ) from error
    return triton


def compiler() -> str:
    """Returns the name and version of the ptxas in Triton's wheel."""
    release = re.search(r"V(\d+\.\d+\.\d+)", _tool("ptxas", "--version"))
    return f"ptxas {release[1] if release else '?'}"


def release(version: str) -> tuple[int, ...]:
    """Returns (3, 7) for "3.7.1+git"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _tool(name: str, *arguments: str) -> str:
    """Returns the output of a program in Triton's wheel. Raises TunefaError if it does not run."""
    path = Path(installed().__file__).parent / "backends" / "nvidia" / "bin" / name
    try:
        return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise TunefaError(
            f"no compiler found: {path} does not run ({error}): reinstall triton from its wheel"
        ) from error


def resources(binary: Any, *beside: Any) -> Resources:
    """Returns the resources: shared memory from Triton, the others from cuobjdump."""
    usage = _USAGE.search(_dumped(binary.asm["cubin"], "resource-usage"))
    if usage is None:
        raise CompileError("cuobjdump prints no resource usage for this cubin")
    registers, stack_bytes, spill_bytes = int(usage[1]), int(usage[2]), 0
    if stack_bytes:  # disassembling is slow, and without a stack nothing is spilled
        widths = _SPILL_STORE.findall(_disassembled(binary.asm["cubin"]))
        spill_bytes = sum(int(width or 32) // 8 for width in widths)
    code = machine_code.of_triton(binary, *beside)
    return Resources(binary.metadata.shared, registers, spill_bytes, stack_bytes, code=code)


def check_descriptors(binary: Any) -> None:
    """Raises CompileError if ptxas left a wgmma descriptor unset, see `wgmma_descriptors`.

    Disassembling takes 0.4 s, so a file beside the binary in Triton's cache says that it was
    checked, whoever's TUNEFA_HOME asks next.
    """
    if "wgmma" not in binary.asm["ptx"]:
        return
    cache = installed().runtime.cache.get_cache_manager(binary.hash)
    checked = f"tunefa-checked-{wgmma_descriptors.FORMAT}"
    if cache.get_file(checked):
        return
    ptxas = f"ptxas {installed().knobs.nvidia.ptxas.version}"  # TRITON_PTXAS_PATH may name another
    if release(ptxas) >= wgmma_descriptors.MENDED:
        return
    if found := wgmma_descriptors.unset(_disassembled(binary.asm["cubin"])):
        raise CompileError(f"{ptxas} leaves {found} unset where a loop before is skipped")
    with contextlib.suppress(OSError):  # one that cannot be written is checked again next time
        cache.put(b"", checked)


@functools.lru_cache(maxsize=4)  # of the kernels of one call, which are checked before spills count
def _disassembled(cubin: bytes) -> str:
    """Returns the instructions of a cubin."""
    return _dumped(cubin, "sass")


def _dumped(cubin: bytes, what: str) -> str:
    """Returns what `cuobjdump --dump-...` prints of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return _tool("cuobjdump", f"--dump-{what}", file.name)
