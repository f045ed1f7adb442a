"""tunefa/search/race_time.py: how long races take, before they are run."""

from __future__ import annotations

import math

import pytest

from tunefa.search import race_time
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

H200 = Target.named("h200")
SHORT = Workload.parse("q1024_d128")
LONG = Workload.parse("bwd_b8_h32_kv8_q8192_d128_bf16_causal")


def test_a_race_takes_what_its_launches_take_and_some_more() -> None:
    nothing, some, more = (race_time.race_s(SHORT, us, 10) for us in (0.0, 1e3, 2e3))
    assert 0.0 < nothing < some
    assert more - some == pytest.approx(some - nothing)
    assert race_time.race_s(SHORT, 1e3, 2) < some
    with_many = SHORT.parse("b8_q1024_d128")  # one launch shows all kinds of inputs
    assert race_time.race_s(with_many, 1e3, 10) < some


def test_kernels_race_where_there_are_several() -> None:
    assert race_time.kernels_s([]) == race_time.kernels_s([1e3, math.inf]) == 0.0
    two, three = race_time.kernels_s([1e3, 2e3]), race_time.kernels_s([1e3, 2e3, 4e3, math.inf])
    assert 0.0 < two < three


def test_a_record_takes_longer_where_launches_do_and_kernels_are_many() -> None:
    short, long = (race_time.record_s(each, H200, 4) for each in (SHORT, LONG))
    assert 1.0 < short < 6.0 < long < 60.0
    assert race_time.record_s(LONG, H200, 1) < long
