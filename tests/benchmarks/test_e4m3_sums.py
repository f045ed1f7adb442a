"""benchmarks/e4m3_sums.py: it cuts off what Hopper's tensor cores cut off."""

from __future__ import annotations

import pytest
import torch

from benchmarks import e4m3_sums
from benchmarks.e4m3_sums import WAYS, Way


def test_terms_are_cut_off_behind_14_bits_of_the_largest() -> None:
    ones, sums = torch.ones(1, 32), torch.tensor([[2.0**14]])
    assert e4m3_sums.added(sums, ones, torch.ones(32, 1)) == 2.0**14  # each is less than a bit
    assert e4m3_sums.added(sums, ones, 3.0 * torch.ones(32, 1)) == 2.0**14 + 32 * 2.0
    assert e4m3_sums.added(-sums / 2, ones, torch.ones(32, 1)) == -(2.0**13) + 32
    assert e4m3_sums.added(0.0 * sums, ones, 0.0 * torch.ones(32, 1)) == 0.0


def test_a_part_of_a_long_positive_sum_is_lost() -> None:
    torch.manual_seed(0)
    scores, v = torch.randn(4, 4096) / 0.7, e4m3_sums.rounded(torch.rand(4096, 8) + 0.5)
    right = (scores * 0.6931).softmax(1) @ v

    def error(way: Way) -> float:
        return float((e4m3_sums.attended(scores, v, way) - right).norm() / right.norm())

    found = {way.name: error(way) for way in WAYS}
    assert found["never"] == pytest.approx(0.07, abs=0.02)  # 0.076 on an H200
    assert found["exact sums"] < found["-0.5 x, 832"] < 9e-3 < found["whole, 1,024"]


def test_the_table_has_a_row_for_each_kind_of_v() -> None:
    rows = e4m3_sums.table(256).splitlines()
    assert len(rows) == 2 + len(list(e4m3_sums.inputs(256)))
    assert all(row.count("|") == len(WAYS) + 2 and "nan" not in row for row in rows)
