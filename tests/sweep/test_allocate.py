"""tunefa/sweep/allocate.py: the next slice goes where the most weighted time is to be saved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.spec.workload import Workload
from tunefa.sweep.allocate import KEPT, PROMISE, Amounts, alike, expected_gains, grant, worth
from tunefa.sweep.item_state import Standing

AMOUNTS = Amounts(10.0, 30.0)
Q4096, Q8192 = Workload.parse("q4096"), Workload.parse("q8192")
NEW = Standing("new", 1.0, Q4096)
DONE = Standing("done", 1.0, Q8192, 0.3, 20.0, 9, 100.0, 80.0, hoped=0.1)


def test_before_a_record_it_is_a_part_of_what_the_model_promises() -> None:
    assert expected_gains([NEW])["new"] == pytest.approx(KEPT * PROMISE)
    assert expected_gains([replace(NEW, promise=0.4)])["new"] == pytest.approx(KEPT * 0.4)
    assert 0 < expected_gains([replace(NEW, promise=0.0)])["new"] < KEPT * PROMISE


def test_others_of_its_kind_say_which_part_is_kept() -> None:
    kept, broken = replace(DONE, promise=0.2), replace(DONE, best_us=100.0, hoped=0.0)
    least, without, most = (
        expected_gains([NEW, *others])["new"] for others in ([broken], [], [kept])
    )
    assert least < without < most
    far = replace(broken, workload=Workload.parse("q128_d256_full"))
    assert least < expected_gains([NEW, far])["new"] < without
    other = replace(broken, workload=Workload.parse("bwd_q4096"))
    assert expected_gains([NEW, other])["new"] == pytest.approx(without)


def test_how_alike_two_workloads_are() -> None:
    assert alike(Q4096, Q4096) == 1.0
    assert 0.5 < alike(Q4096, Q8192) < 1.0
    assert alike(Q4096, replace(Q4096, head_dim=64, head_dim_v=64)) == 0.5
    assert alike(Q4096, replace(Q4096, causal=False, dtype="fp16")) == 0.25
    assert alike(Q4096, Workload.parse("bwd_q4096")) == 0.0
    matmul = Workload.parse("matmul_m4096_n4096_k4096")
    assert alike(matmul, matmul) == 1.0 and alike(matmul, Q4096) == 0.0


def test_after_it_is_what_the_model_hopes_for_relative_to_the_default() -> None:
    assert expected_gains([DONE])["done"] == pytest.approx(0.08)
    unknown = replace(DONE, hoped=None)
    assert 0.0 < expected_gains([unknown])["done"] < 0.08
    longer = replace(unknown, trials=50)
    assert 0.0 < expected_gains([longer])["done"] < expected_gains([unknown])["done"]


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


def test_records_that_are_missing_come_first_in_time() -> None:
    light, heavy = replace(NEW, key="light", weight=0.01), replace(DONE, key="heavy", spent=200.0)

    def first(left: float, workers: int = 1, least: float = 0.0) -> str:
        values = worth([replace(light, least=least), heavy], left, workers, AMOUNTS)
        return max(values, key=lambda key: values[key])

    assert first(100.0) == "heavy"
    assert first(40.0) == "light", "one more slice of 30 s would leave too little"
    assert first(100.0, least=60.0) == "light"
    assert first(100.0, workers=2, least=60.0) == "light", "it needs them on one GPU"


def test_a_small_budget_goes_first_where_most_is_gained() -> None:
    light, heavy = replace(NEW, key="light", weight=0.01), replace(DONE, key="heavy", spent=10.0)
    values = worth([light, heavy], 40.0, 1, AMOUNTS)
    assert values["heavy"] > values["light"] > 0.0


def test_what_needs_less_for_the_same_gain_is_worth_more() -> None:
    values = worth([NEW, replace(NEW, key="long", least=40.0)], 100.0, 1, AMOUNTS)
    assert values["new"] == pytest.approx(4.0 * values["long"])


def test_an_item_has_what_it_needs_or_nothing() -> None:
    long = replace(NEW, least=40.0)
    chosen = grant([long], 100.0, 1, AMOUNTS)
    assert chosen is not None and chosen.amount == 40.0
    assert grant([long], 39.0, 1, AMOUNTS) is None
    other = grant([long, replace(DONE, spent=0.0)], 39.0, 1, AMOUNTS)
    assert other is not None and other.key == "done"
