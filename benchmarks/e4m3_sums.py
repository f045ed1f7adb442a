"""Emulates sums of e4m3 attention on the CPU: what is lost when they are promoted late, or never.

    python -m benchmarks.e4m3_sums [--keys 16384]

Hopper's tensor cores add 32 products of 8 bits to a sum. All terms are cut off behind 14 bits,
counted from the leading one of the largest, and so is the sum: with that the errors of an H200 come
out to two digits (docs/kernels.md). The emulated attention rounds P to e4m3 as
attention_fwd_cuda_sm90 does, and goes through blocks of 64 keys from the last one to the first.

Ways to sum differ in the keys between two promotions (0: none), in the part of a sum that a
promotion leaves, and in whether columns of V are centred before. Then V - c is rounded to e4m3, and
c is added to the output; c is the mean of 64 keys, or 0 if that is less than half of their
deviation.

Errors are those in norm against fp64, in the mean of 24 rows and 32 columns.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import markdown

ROWS, COLUMNS, BLOCK_N, BITS, ROOM = 24, 32, 64, 14, 4
"""ROOM: powers of two by which P may grow before its maximum follows, up to 2^8."""
NATS_TO_LOG2 = 1.0 / math.log(2.0)


class Way(NamedTuple):
    """A way to sum."""

    name: str
    keys: int = 0
    left: float = 0.0
    centred: bool = False
    exact: bool = False


WAYS = (
    Way("exact sums", exact=True),
    Way("whole, 512", 512),
    Way("whole, 1,024", 1024),
    Way("-0.5 x, 832", 832, -0.5),
    Way("-0.5 x, 2,048", 2048, -0.5),
    Way("never", 0),
    Way("centred, 2,048", 2048, centred=True),
    Way("centred, never", 0, centred=True),
)


def rounded(x: Tensor) -> Tensor:
    """To e4m3."""
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


def cut(x: Tensor, largest: Tensor) -> Tensor:
    """Cuts x off behind so many bits of `largest`."""
    unit = torch.exp2(torch.frexp(largest).exponent.float() - BITS)
    return torch.where(largest > 0, (x / unit).trunc() * unit, 0.0)


def added(sums: Tensor, p: Tensor, v: Tensor) -> Tensor:
    """Returns sums (rows, columns) + p @ v of some keys, as tensor cores add them."""
    for key in range(0, len(v), 32):
        products = p[:, key : key + 32, None] * v[None, key : key + 32]
        largest = torch.maximum(sums.abs(), products.abs().amax(1))
        sums = cut(sums, largest) + cut(products, largest[:, None]).sum(1)
        sums = cut(sums, sums.abs())
    return sums


def centre(v: Tensor) -> Tensor:
    """The constants of the columns."""
    sample = v[:: max(1, len(v) // 64)]
    mean = sample.mean(0)
    return rounded(torch.where(mean.abs() > 0.5 * sample.std(0), mean, 0.0))


def attended(scores: Tensor, v: Tensor, way: Way) -> Tensor:
    """Attention to v (keys, columns) with scores (rows, keys) in units of log2."""
    constant = centre(v) if way.centred else torch.zeros(v.shape[1])
    v = rounded(v - constant)
    row_max, row_sum = torch.full((len(scores),), -math.inf), torch.zeros(len(scores))
    sums, promoted = torch.zeros(2, len(scores), v.shape[1])
    # Where a part is left, the first sums, which start at zero, are promoted after half as many.
    keys = way.keys // 2 if way.left else 0
    for begin in reversed(range(0, len(v), BLOCK_N)):
        s = scores[:, begin : begin + BLOCK_N]
        block_max = s.amax(1) - 8 + ROOM
        new_max = torch.where(block_max > row_max + ROOM, block_max, row_max)
        shift = new_max.clamp_min(-1e30)  # of a row that has seen no key
        p, scale = torch.exp2(s - shift[:, None]), torch.exp2(row_max - shift)
        row_max, row_sum = new_max, row_sum * scale + p.sum(1)
        sums, promoted = sums * scale[:, None], promoted * scale[:, None]
        block = v[begin : begin + BLOCK_N]
        sums = sums + rounded(p) @ block if way.exact else added(sums, rounded(p), block)
        keys += BLOCK_N
        if way.keys and keys >= way.keys:
            promoted, sums, keys = promoted + (1.0 - way.left) * sums, way.left * sums, 0
    out: Tensor = (sums + promoted) / row_sum[:, None] + constant
    return out.bfloat16()


def inputs(keys: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Names of inputs, scores (rows, keys) in nats and V (keys, columns)."""
    torch.manual_seed(0)
    q, k = rounded(torch.randn(ROWS, 128)), rounded(torch.randn(keys, 128))
    scores, normal = q @ k.T * 128**-0.5, torch.randn(keys, COLUMNS)
    all_keys = scores.logsumexp(1)
    offsets = torch.randn(COLUMNS)
    yield "normal", scores, normal
    yield "between 0.5 and 1.5", scores, torch.rand(keys, COLUMNS) + 0.5
    yield "normal, its absolute value", scores, normal.abs()
    yield "log-normal", scores, normal.exp()
    yield "normal, columns with offsets", scores, normal + offsets
    two = torch.where(torch.rand(keys, 1) < 0.5, 1.0, -1.0)
    yield "1 and -1, rows prefer 1", scores + 4.0 * (two[:, 0] > 0), two + 0.3 * normal
    sink, small = scores.clone(), normal + offsets
    sink[:, 0], small[0] = all_keys + math.log(9.0), 0.05 * normal[0]
    yield "offsets, nine tenths of P at a key with small V", sink, small
    few, growing = scores.clone(), (0.3 * normal + 1.0) * offsets
    few[:, 40:], growing[: keys // 8] = -math.inf, 0.02 * growing[: keys // 8]
    yield "rows see 40 keys, V is 50 times as large behind", few, growing


def table(keys: int) -> str:
    """The error of each way for each kind of inputs."""
    rows = [["V", *(way.name for way in WAYS)]]
    for name, scores, v in inputs(keys):
        v = rounded(v)
        right = scores.double().softmax(1) @ v.double()
        found = [attended(scores * NATS_TO_LOG2, v, way).double() - right for way in WAYS]
        rows.append([name, *(f"{float(each.norm() / right.norm()):.1e}" for each in found)])
    return markdown.table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keys", type=int, default=16384)
    print(table(parser.parse_args().keys))


if __name__ == "__main__":
    main()
