"""Entries of the cache of compiled kernels that something else changed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tunefa import assets
from tunefa.compile import cubin_cache
from tunefa.compile.nvrtc import Cubin
from tunefa.spec.trial import Resources

KEY = "0123abcd"
CUBIN = Cubin(bytes(range(64)), Resources(smem_bytes=0, registers=219, spill_bytes=0))


@pytest.fixture
def entry() -> Path:
    cubin_cache.save(KEY, CUBIN)
    (path,) = assets.cache().rglob("*.cubin")
    return path


def test_whatever_bit_is_flipped_it_is_a_miss(entry: Path) -> None:
    whole = entry.read_bytes()
    for at in range(len(whole)):
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        assert cubin_cache.load(KEY) is None, at
    for size in range(len(whole)):
        entry.write_bytes(whole[:size])
        assert cubin_cache.load(KEY) is None, size
    cubin_cache.save(KEY, CUBIN)
    assert cubin_cache.load(KEY) == CUBIN and entry.read_bytes() == whole


@pytest.mark.parametrize("resources", [5, [], {"registers": "219"}, {"registers": -1}])
def test_a_wrong_type_is_a_miss_even_with_the_right_checksum(
    entry: Path, resources: object
) -> None:
    rest = json.dumps(resources).encode() + b"\n" + CUBIN.image
    entry.write_bytes(cubin_cache._digest(KEY, rest) + b"\n" + rest)
    assert cubin_cache.load(KEY) is None


def test_an_entry_under_another_key_is_a_miss(entry: Path) -> None:
    other = entry.with_name("0124.cubin")
    entry.rename(other)
    assert cubin_cache.load("0124") is None


@pytest.mark.timeout(30)
def test_a_pipe_is_a_miss(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)
    assert cubin_cache.load(KEY) is None
    cubin_cache.save(KEY, CUBIN)
    assert cubin_cache.load(KEY) == CUBIN


def test_what_killed_writers_left_is_removed_after_a_day(entry: Path) -> None:
    old, new = entry.with_name(".left1234"), entry.with_name(".new12345")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000,) * 2)
    cubin_cache.save(KEY, CUBIN)
    assert not old.exists() and new.exists() and entry.exists()
