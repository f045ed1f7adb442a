"""Which blocks of keys a row of packed sequences goes through, and which of them are masked: the
kernel's own functions, on whole numbers in place of the device's."""

from __future__ import annotations

import random
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from tunefa import kernel as kernels

ATTENTION = kernels.load("attention_fwd_gluon_sm90").module.Attention


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


def seen(row: int, seqlen_q: int, seqlen_k: int, causal: bool, window: int) -> range:
    """The keys that a row sees, by definition."""
    if not causal:
        return range(seqlen_k)
    last = row + seqlen_k - seqlen_q
    return range(max(0, last - window + 1) if window else 0, max(0, last + 1))


@pytest.mark.parametrize("kind", ["full", "causal", "window"])
def test_every_key_is_met_once_and_masked_where_it_must(kind: str) -> None:
    chance, blocks, crosses = random.Random(kind), on_host("blocks"), on_host("crosses")
    causal = kind != "full"
    for _ in range(300):
        seqlen_q, seqlen_k = (chance.randint(0, chance.choice([70, 500])) for _ in range(2))
        window, n = chance.choice([1, 50, 130]) if kind == "window" else 0, chance.choice([64, 128])
        rows, a = (
            64 * chance.randint(1, 4),
            SimpleNamespace(VARLEN=True, BLOCK_N=Number(n), ROWS=64),
        )
        a.seqlen_q, a.seqlen_k, a.window = map(Number, (seqlen_q, seqlen_k, window))
        a.CAUSAL, a.WINDOWED, a.AHEAD = causal, bool(window), False
        a.diagonal = lambda a=a: a.seqlen_k - a.seqlen_q
        for tile in range(0, seqlen_q, rows):
            tile_begin, tile_end = blocks(a, Number(tile), rows)
            for row in range(tile, tile + rows, 64):
                begin, end = blocks(a, Number(row), 64)
                assert 0 <= tile_begin <= begin < end <= tile_end
                for each in range(row, min(row + 64, seqlen_q)):
                    keys = seen(each, seqlen_q, seqlen_k, causal, window)
                    assert not keys or (begin * n <= keys[0] and keys[-1] < end * n)
                    for block in range(begin, end - 1):  # the last one is always masked
                        if not (causal and crosses(a, Number(row), Number(block))):
                            assert block * n in keys and block * n + n - 1 in keys
