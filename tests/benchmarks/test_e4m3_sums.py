"""benchmarks/e4m3_sums.py: the emulation of sums in e4m3, and when they are put into fp32."""

from __future__ import annotations

import pytest
import torch

from benchmarks import e4m3_sums

KEYS = 4096
GENERATOR = torch.Generator().manual_seed(1)
P = e4m3_sums.probabilities(4, KEYS, GENERATOR)
KINDS = e4m3_sums.kinds(KEYS, GENERATOR)


def found(kind: str) -> tuple[list[float], list[int]]:
    """The errors of one sum, of 512 keys, and by both rules; and how often the rules applied."""
    _, never, often, rule, times, by_column, times_by_column = e4m3_sums.row_of(
        kind, KINDS[kind], P
    )
    counts = [int(each.split()[0]) for each in (times, times_by_column)]
    return [float(each) for each in (never, often, rule, by_column)], counts


def test_a_sum_without_cut_off_bits_is_exact() -> None:
    p, v = torch.ones(2, 64), torch.full((64, 8), 0.5)
    sums, times = e4m3_sums.summed(p, v, lambda *_: False)
    assert times == 0 and torch.equal(sums, torch.full((2, 8), 32.0))


def test_small_products_are_cut_off_beside_a_large_sum() -> None:
    p, v = torch.ones(1, 64), torch.ones(64, 1)
    p[0, 0] = 2.0**14
    sums, _ = e4m3_sums.summed(p, v, lambda *_: False)
    assert sums.item() == 2.0**14, "a one is below the last bit that is kept"


def test_positive_values_need_sums_of_512_keys_always() -> None:
    (never, often, rule, by_column), times = found("between 0.5 and 1.5")
    assert never > 5 * often and often == pytest.approx(6e-3, rel=0.3)
    assert rule == by_column == often and times == [KEYS // 512] * 2


def test_normal_values_seldom_do() -> None:
    (never, often, rule, by_column), times = found("normal")
    assert max(rule, by_column, never) < 1.1 * often
    assert max(times) <= KEYS // 512 // 4


def test_small_columns_need_the_rule_by_column() -> None:
    (_, often, rule, by_column), times = found("four columns positive, an eighth as large")
    assert by_column < 1.2 * often < rule and times[0] < times[1]
