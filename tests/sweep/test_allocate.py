"""tunefa/sweep/allocate.py: the next slice goes where the most weighted time is to be saved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.sweep.allocate import EXPECTED_GAIN, Amounts, expected_gains, grant
from tunefa.sweep.standing import Standing

AMOUNTS = Amounts(10.0, 30.0)
NEW = Standing("new", 1.0, "fwd")
DONE = Standing("done", 1.0, "fwd", 20.0, 9, 100.0, 80.0, hoped=0.1)


def test_before_a_record_it_is_what_others_of_the_op_gained() -> None:
    assert expected_gains([NEW])["new"] == EXPECTED_GAIN
    assert expected_gains([NEW, DONE])["new"] == pytest.approx((EXPECTED_GAIN + 0.2) / 2)
    other = replace(DONE, op="bwd")
    assert expected_gains([NEW, other])["new"] == EXPECTED_GAIN


def test_after_it_is_what_the_model_hopes_for_relative_to_the_default() -> None:
    assert expected_gains([DONE])["done"] == pytest.approx(0.08)
    unknown = replace(DONE, hoped=None)
    assert 0.0 < expected_gains([unknown])["done"] < 0.08


@pytest.mark.parametrize(
    "item",
    [
        replace(DONE, is_settled=True),
        replace(DONE, hoped=0.0005),
        replace(NEW, failures=3),
    ],
)
def test_nothing_is_expected_of_what_is_done_or_given_up(item: Standing) -> None:
    assert expected_gains([item])[item.key] == 0.0
    assert grant([item], 100.0, 1, AMOUNTS) is None


def test_the_largest_weighted_gain_is_next() -> None:
    light, heavy = replace(NEW, key="light"), replace(DONE, key="heavy", weight=3.0)
    chosen = grant([light, heavy], 100.0, 1, AMOUNTS)
    assert chosen is not None and chosen.key == "heavy"
    chosen = grant([light, replace(heavy, weight=0.5)], 100.0, 1, AMOUNTS)
    assert chosen is not None and chosen.key == "light"
    chosen = grant([light, replace(heavy, is_busy=True)], 100.0, 1, AMOUNTS)
    assert chosen is not None and chosen.key == "light"
    assert grant([replace(light, is_busy=True)], 100.0, 1, AMOUNTS) is None


@pytest.mark.parametrize(
    ("left", "workers", "items", "amount"),
    [
        (9.9, 1, 1, None),  # too little for a record
        (100.0, 1, 1, 30.0),
        (100.0, 1, 5, 20.0),  # a fair part of what is left
        (100.0, 2, 10, 20.0),
        (100.0, 1, 50, 10.0),  # not all will get one
        (35.0, 1, 1, 30.0),  # the rest is too little for another one
        (19.0, 1, 5, 19.0),
    ],
)
def test_amounts(left: float, workers: int, items: int, amount: float | None) -> None:
    many = [replace(NEW, key=str(number)) for number in range(items)]
    chosen = grant(many, left, workers, AMOUNTS)
    assert (chosen and chosen.amount) == amount
