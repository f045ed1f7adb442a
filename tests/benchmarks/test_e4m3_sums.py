"""benchmarks/e4m3_sums.py: the emulation of sums in e4m3, and when they are put into fp32."""

from __future__ import annotations

import pytest
import torch

from benchmarks import e4m3_sums

KEYS = 4096
GENERATOR = torch.Generator().manual_seed(1)
P = e4m3_sums.probabilities(16, KEYS, GENERATOR)
KINDS = e4m3_sums.kinds(KEYS, GENERATOR)


def found(kind: str) -> tuple[list[float], int, int]:
    """The errors of one sum, of 512 keys and by the kernel's rule, its looks and promotions."""
    _, *errors, looks, promotions = e4m3_sums.row_of(kind, KINDS[kind], P)
    return [float(each) for each in errors], int(looks), int(promotions)


def test_a_sum_without_cut_off_bits_is_exact() -> None:
    p, v = torch.ones(2, 64), torch.full((64, 8), 0.5)
    sums, looks, promotions = e4m3_sums.summed(p, v, e4m3_sums.never)
    assert looks == promotions == 0 and torch.equal(sums, torch.full((2, 8), 32.0))


def test_small_products_are_cut_off_beside_a_large_sum() -> None:
    p, v = torch.ones(1, 64), torch.ones(64, 1)
    p[0, 0] = 2.0**14
    sums, *_ = e4m3_sums.summed(p, v, e4m3_sums.never)
    assert sums.item() == 2.0**14, "a one is below the last bit that is kept"


def test_positive_values_need_sums_of_512_keys_always() -> None:
    (never, often, grown), looks, promotions = found("between 0.5 and 1.5")
    assert never > 5 * often and often == pytest.approx(6e-3, rel=0.3)
    assert grown == often and looks == promotions == KEYS // 512


def test_normal_values_need_neither_promotions_nor_many_looks() -> None:
    (never, often, grown), looks, promotions = found("normal")
    assert max(grown, never) < 1.1 * often
    assert promotions == 0 and looks <= 3


def test_small_columns_are_judged_by_their_own_magnitude() -> None:
    (_, often, grown), _, promotions = found("four columns positive, an eighth as large")
    assert grown < 1.2 * often and promotions == KEYS // 512


def test_a_little_more_than_normal_is_promoted_later() -> None:
    (_, _, grown), looks, promotions = found("normal, and 0.2 more")
    assert grown < 6e-3 and 0 < promotions < looks
