"""Emulates the sums of products in e4m3 in tensor cores, without a device, and how often they must
be put into fp32.

    python -m benchmarks.e4m3_sums [--keys 16384] [--rows 16]

A step of WGMMA adds 32 products to a sum. The emulation cuts off what each of them, and the sum,
has below 2^-13 of the power of two of the largest one. That reproduces the errors that
attention_fwd_cuda_sm90 has on an H200 (docs/kernels.md): 2.5e-3 with 256 keys in a sum, 6.3e-3 with
512, 1.5e-2 with 1,024 and 0.26 with all 16,384, where values are positive.

Each row is a kind of values; the errors are relative to fp64, in norm, with one sum over all keys
(`never`), with 512 keys in a sum (`512`), and with sums that are put into fp32 where one of them
exceeds 512 typical products: the mean probability of its row times the mean magnitude of the last
128 keys' values (`rule`), or of its own column of these (`by column`). Beside them is how often
each did so, of so many looks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import markdown

STEP, BITS = 32, 13
"""Keys that WGMMA adds at once, and the bits that a product keeps below the largest one."""
LOOK, MOST_PRODUCTS = 512, 512.0
"""Keys between two looks at the sums, and the typical products that one may hold."""
COLUMNS = 128
Rule = Callable[[Tensor, Tensor, Tensor], bool]
"""Whether sums (rows, columns) go into fp32, by the probabilities and the values so far."""


def in_e4m3(x: Tensor) -> Tensor:
    """Rounds to e4m3, in fp32."""
    return x.to(torch.float8_e4m3fn).float()


def summed(p: Tensor, v: Tensor, rule: Rule) -> tuple[Tensor, int]:
    """Returns p (rows, keys) @ v (keys, columns) as tensor cores add it, and how many times sums
    were put into fp32. The rule is asked after every LOOK keys."""
    total = torch.zeros(len(p), v.shape[1])
    sums, times = torch.zeros_like(total), 0
    for at in range(0, len(v), STEP):
        products = p[:, at : at + STEP, None] * v[None, at : at + STEP]
        largest = torch.maximum(sums.abs(), products.abs().amax(1)).clamp_min(1e-30)
        last = torch.exp2(largest.log2().floor() - BITS)  # what is below is cut off
        sums = (sums / last).trunc() * last
        sums += ((products / last[:, None]).trunc() * last[:, None]).sum(1)
        end = at + STEP
        if end % LOOK == 0 and rule(sums, p[:, :end], v[:end]):
            total, sums, times = total + sums, torch.zeros_like(sums), times + 1
    return total + sums, times


def exceeds_typical(sums: Tensor, p: Tensor, v: Tensor) -> bool:
    """Whether a sum holds more than MOST_PRODUCTS typical products."""
    return _exceeds(sums, p, v[-128:].abs().mean())


def exceeds_typical_of_column(sums: Tensor, p: Tensor, v: Tensor) -> bool:
    """The same, by what is typical of its column."""
    return _exceeds(sums, p, v[-128:].abs().mean(0))


def _exceeds(sums: Tensor, p: Tensor, magnitude: Tensor) -> bool:
    typical = p.mean(1, keepdim=True) * magnitude
    return bool((sums.abs() > MOST_PRODUCTS * typical).any())


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
        "between 0.5 and 1.5": torch.rand(keys, COLUMNS, generator=generator) + 0.5,
        "normal, and 0.2 more": normal() + 0.2,
        "four columns positive": biased(1.0),
        "four columns positive, an eighth as large": biased(0.125),
        "positive, then negative": turning(),
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

    def error(rule: Rule) -> tuple[str, int]:
        found, times = summed(rounded, v, rule)
        return f"{float((found - right).norm() / right.norm()):.1e}", times

    (never, _), (often, looks) = error(lambda *_: False), error(lambda *_: True)
    cells = []
    for rule in (exceeds_typical, exceeds_typical_of_column):
        by_rule, times = error(rule)
        cells += [by_rule, f"{times} of {looks}"]
    return [name, never, often, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--rows", type=int, default=16)
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    p = probabilities(given.rows, given.keys, generator)
    rows = [["values", "never", "512", "rule", "times", "by column", "times"]]
    rows += [row_of(name, v, p) for name, v in kinds(given.keys, generator).items()]
    print(markdown.table(rows))


if __name__ == "__main__":
    main()
