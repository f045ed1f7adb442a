"""The blocks of keys that a row of packed sequences goes through, and which are masked: the
kernel's own functions, on whole numbers in place of the device's."""

from __future__ import annotations

import importlib
import random
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from tunefa.spec import kernel as kernels

MODULE = kernels.load("attention_fwd_gluon_sm90").module
ATTENTION = importlib.import_module("tunefa.kernels.gluon.attention").Attention
EDGES = MODULE.tile_table.edges


class Number(int):
    """An integer whose division goes towards 0, as the device's does."""

    def __add__(self, other: int) -> Number:
        return Number(int(self) + int(other))

    def __sub__(self, other: int) -> Number:
        return Number(int(self) - int(other))

    def __mul__(self, other: int) -> Number:
        return Number(int(self) * int(other))

    def __floordiv__(self, other: int) -> Number:
        quotient = abs(int(self)) // int(other)
        return Number(quotient if self >= 0 else -quotient)


def on_host(name: str) -> Any:
    """A device function of the kernel as one of Python."""
    gl = SimpleNamespace(
        minimum=lambda *x: Number(min(x)), maximum=lambda *x: Number(max(x)), constexpr=None
    )
    made = getattr(ATTENTION, name).fn
    return FunctionType(made.__code__, {**made.__globals__, "gl": gl})


def seen(row: int, seqlen_q: int, seqlen_k: int, band: Any) -> range:
    """The keys that a row sees, by definition."""
    (left, right), own = band, row + seqlen_k - seqlen_q
    first = 0 if left is None else max(0, own - left)
    end = seqlen_k if right is None else min(seqlen_k, max(0, own + right + 1))
    return range(first, end)


@pytest.mark.parametrize(
    ("left", "right"),
    [(None, None), (None, 0), (True, 0), (True, True), (None, True), (True, None)],
)
def test_every_key_is_met_once_and_masked_where_it_must(left: Any, right: Any) -> None:
    """True: some keys on that side of the diagonal."""
    chance = random.Random(f"{left} {right}")
    names = ("blocks", "crosses", "diagonal")
    blocks, crosses, diagonal = map(on_host, names)
    for _ in range(300):
        seqlen_q, seqlen_k = (chance.randint(0, chance.choice([70, 500])) for _ in range(2))
        sides = [chance.choice([0, 49, 129]) if side else None for side in (left, right)]
        band = (sides[0], 0 if right == 0 else sides[1])
        n, rows = chance.choice([64, 128]), 64 * chance.randint(1, 4)
        a = SimpleNamespace(VARLEN=True, ROWS=64, BLOCK_N=Number(n))
        longest = SimpleNamespace(seqlen_q=seqlen_q + chance.choice([0, 100]), band=band)
        window_right, window_keys = EDGES(longest)
        sizes = (seqlen_q, seqlen_k, window_keys or 0, window_right)
        a.seqlen_q, a.seqlen_k, a.window_keys, a.window_right = map(Number, sizes)
        a.CAUSAL, a.WINDOWED = band != (None, None), window_keys is not None
        a.AHEAD = a.CAUSAL and right != 0
        a.diagonal = partial(diagonal, a)
        for tile in range(0, seqlen_q, rows):
            tile_begin, tile_end = blocks(a, Number(tile), rows)
            for row in range(tile, tile + rows, 64):
                begin, end = blocks(a, Number(row), 64)
                assert 0 <= tile_begin <= begin < end <= tile_end
                for each in range(row, min(row + 64, seqlen_q)):
                    keys = seen(each, seqlen_q, seqlen_k, band)
                    assert not keys or (begin * n <= keys[0] and keys[-1] < end * n)
                    for block in range(begin, end - 1):  # the last one is always masked
                        if not (a.CAUSAL and crosses(a, Number(row), Number(block))):
                            assert block * n in keys and block * n + n - 1 in keys
