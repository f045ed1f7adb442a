"""benchmarks/host_memory.py: memory that is in use is counted, and memory that was freed is not."""

from __future__ import annotations

import ctypes

import pytest

from benchmarks import host_memory


def test_what_is_in_use_counts_until_it_is_freed() -> None:
    before = host_memory.resident_mb()
    held = bytearray(b"x") * 80_000_000
    assert host_memory.resident_mb() - before > 70
    del held
    assert host_memory.resident_mb() - before < 20


def test_malloc_and_python_say_what_they_have_handed_out() -> None:
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("the C library has no mallinfo2")
    malloc, blocks = host_memory.malloc_mb(), host_memory.python_blocks()
    held = bytearray(50_000_000)
    objects = [object() for _ in range(100_000)]
    assert host_memory.malloc_mb() - malloc > 45
    assert host_memory.python_blocks() - blocks >= len(objects)
    del held
    assert host_memory.malloc_mb() - malloc < 45


def test_another_c_library_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_of_libc", lambda name: None)
    assert host_memory.malloc_mb() == 0 and host_memory.resident_mb() > 1
