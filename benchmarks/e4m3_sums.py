"""Emulates the sums of products in e4m3 in tensor cores, without a device, and how often they must
be put into fp32.

    python -m benchmarks.e4m3_sums [--keys 16384] [--rows 16]

A step of WGMMA adds 32 products to a sum. The emulation cuts off what each of them, and the sum,
has below 2^-13 of the power of two of the largest one. That reproduces the errors that
attention_fwd_cuda_sm90 has on an H200 (docs/kernels.md): 2.5e-3 with 256 keys in a sum, 6.3e-3 with
512, 1.5e-2 with 1,024 and 0.26 with all 16,384, where values are positive.

Each row is a kind of values. The errors are relative to fp64, in norm: with one sum over all keys
(`never`), with 512 keys in a sum (`512`), and with sums that are put into fp32 as the kernel does
it (`grown`), which looks at them now and then and promotes them where one has grown large. Beside
it are how often it looked and promoted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import markdown

STEP, BITS = 32, 13
"""Keys that WGMMA adds at once, and the bits that a product keeps below the largest one."""
SUM_KEYS, MOST_LOOK_KEYS, MOST_PRODUCTS = 512, 2048, 896.0
"""Keys before the first look at the sums, the most between two, and the typical products that a sum
may have at the next look (kernels/cuda/warpgroup_rows.cuh)."""
COLUMNS, MAGNITUDE_KEYS = 128, 128
"""Columns of the values, and the last keys that say how large those of a column are."""


class Look(NamedTuple):
    """The decision of a look at the sums."""

    promote: bool
    next_keys: int
    """The keys until the next look."""


Rule = Callable[[Tensor, Tensor, Tensor, int], Look]
"""A look at sums (rows, columns) of the last keys, with all probabilities and values so far."""


def in_e4m3(x: Tensor) -> Tensor:
    """Rounds to e4m3, in fp32."""
    return x.to(torch.float8_e4m3fn).float()


def summed(p: Tensor, v: Tensor, rule: Rule) -> tuple[Tensor, int, int]:
    """Returns p (rows, keys) @ v (keys, columns) as tensor cores add it, and how many times the
    rule was asked and sums were promoted."""
    total = torch.zeros(len(p), v.shape[1])
    sums = torch.zeros_like(total)
    looks = promotions = promoted_keys = 0
    look_at = SUM_KEYS
    for at in range(0, len(v), STEP):
        products = p[:, at : at + STEP, None] * v[None, at : at + STEP]
        largest = torch.maximum(sums.abs(), products.abs().amax(1)).clamp_min(1e-30)
        last = torch.exp2(largest.log2().floor() - BITS)  # what is below is cut off
        sums = (sums / last).trunc() * last
        sums += ((products / last[:, None]).trunc() * last[:, None]).sum(1)
        end = at + STEP
        if end < look_at:
            continue
        look = rule(sums, p[:, :end], v[:end], end - promoted_keys)
        looks, look_at = looks + 1, end + look.next_keys
        if look.promote:
            total, sums = total + sums, torch.zeros_like(sums)
            promotions, promoted_keys = promotions + 1, end
    return total + sums, looks, promotions


def never(*_: object) -> Look:
    """One sum over all keys."""
    return Look(promote=False, next_keys=SUM_KEYS)


def always(*_: object) -> Look:
    """Sums of SUM_KEYS keys."""
    return Look(promote=True, next_keys=SUM_KEYS)


def where_grown(sums: Tensor, p: Tensor, v: Tensor, own: int) -> Look:
    """The kernel's rule. A sum is judged by the geometric mean with the sum of the same column,
    eight rows further down, in typical products: mean probability x mean magnitude."""
    by_row = (sums.abs() / p.mean(1, keepdim=True)).view(-1, 2, 8, v.shape[1])
    pairs = (by_row[:, 0] * by_row[:, 1]).sqrt()
    magnitudes = v[-MAGNITUDE_KEYS:].abs().mean(0)

    def grows(products: Tensor, keys: int) -> bool:
        """Whether a sum has too many products after so many more keys."""
        return float(products.max()) * (own + keys) > MOST_PRODUCTS * own

    late, early = min(3 * own, MOST_LOOK_KEYS), min(own, MOST_LOOK_KEYS)
    if not grows(pairs / magnitudes.min(), late):
        return Look(promote=False, next_keys=late)
    if not grows(pairs / magnitudes, early):
        return Look(promote=False, next_keys=early)
    return Look(promote=True, next_keys=SUM_KEYS)


def kinds(keys: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Values (keys, COLUMNS) by name."""

    def normal() -> Tensor:
        return torch.randn(keys, COLUMNS, generator=generator)

    def biased(size: float) -> Tensor:
        made = normal()
        made[:, :4] = size * (made[:, :4].abs() + 0.5)
        return made

    def turning() -> Tensor:
        made = normal().abs()
        made[keys // 2 :] *= -1
        return made

    return {
        "normal": normal(),
        "normal, and 0.1 more": normal() + 0.1,
        "between 0.5 and 1.5": torch.rand(keys, COLUMNS, generator=generator) + 0.5,
        "normal, and 0.2 more": normal() + 0.2,
        "four columns positive": biased(1.0),
        "four columns positive, an eighth as large": biased(0.125),
        "positive, then negative": turning(),
        "normal, then positive": torch.cat([normal()[: keys // 2], normal()[keys // 2 :].abs()]),
    }


def probabilities(rows: int, keys: int, generator: torch.Generator) -> Tensor:
    """Probabilities of normal queries and keys with 64 columns; the largest is 2^8."""
    q, k = (in_e4m3(torch.randn(n, 64, generator=generator)) for n in (rows, keys))
    scores = (q @ k.T) / 8
    return torch.exp2((scores - scores.amax(1, keepdim=True)) * 1.4427 + 8)


def row_of(name: str, values: Tensor, p: Tensor) -> list[str]:
    """A row of the table."""
    v, rounded = in_e4m3(values), in_e4m3(p)
    right = (p.double() @ v.double()).float()

    cells = []
    for rule in (never, always, where_grown):
        found, looks, promotions = summed(rounded, v, rule)
        cells.append(f"{float((found - right).norm() / right.norm()):.1e}")
    return [name, *cells, str(looks), str(promotions)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--rows", type=int, default=16, help="a multiple of 16")
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    p = probabilities(given.rows, given.keys, generator)
    rows = [["values", "never", "512", "grown", "looks", "promotions"]]
    rows += [row_of(name, v, p) for name, v in kinds(given.keys, generator).items()]
    print(markdown.table(rows))


if __name__ == "__main__":
    main()
