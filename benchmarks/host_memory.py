"""The host's memory that this process uses, and what of it C and Python code have in use."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer, see mallinfo(3)."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def resident_mb() -> float:
    """Returns the resident memory (RSS) in MB, after free memory was given back to the system.

    glibc keeps memory that was freed, more of it in a process whose calls have many different
    sizes. That is no leak, so it should not count.
    """
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)
    return resident_bytes() / 1e6


def resident_bytes() -> int:
    """Returns the resident memory (RSS) in bytes, with what malloc keeps of freed memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def malloc_mb() -> float:
    """Returns the memory in MB that malloc has handed out: in large parts of their own, and from
    all arenas. It is 0 with another C library than glibc."""
    info = _of_libc("mallinfo2")
    if info is None:
        return 0.0
    info.restype = _Mallinfo
    found = info()
    return float(found.uordblks + found.hblkhd) / 1e6


def python_blocks() -> int:
    """Returns the number of blocks that Python's allocator has handed out."""
    return sys.getallocatedblocks()


def _of_libc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
