"""tunefa/spec/trial.py: what ranks a trial, and what is read back of one."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefa.spec.trial import Resources, Trial, identity, time_us

CONFIG = {"BLOCK_M": 128, "num_warps": 8}
RESOURCES = Resources(smem_bytes=98304, registers=168, spill_bytes=0, stack_bytes=None)


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9))
def test_the_median_is_that_of_the_samples(samples: list[float]) -> None:
    trial = Trial(CONFIG, "ok", predicted_us=5.0, samples_us=tuple(samples))
    assert trial.median_us == pytest.approx(statistics.median(samples))


def test_without_samples_it_is_the_prediction_and_without_that_none() -> None:
    assert Trial(CONFIG, "ok", predicted_us=5.0).median_us == 5.0
    assert Trial(CONFIG, "crashed").median_us is None


def test_a_trial_without_a_time_comes_last() -> None:
    slow, none = Trial(CONFIG, "ok", predicted_us=9e9), Trial(CONFIG, "timeout")
    assert sorted([none, slow], key=time_us) == [slow, none] and math.isinf(time_us(none))


def test_two_configs_are_the_same_in_whatever_order_they_are() -> None:
    assert identity(CONFIG) == identity(dict(reversed(CONFIG.items())))
    assert identity(CONFIG) != identity({**CONFIG, "num_warps": 4})
    assert len({identity(CONFIG), identity(dict(CONFIG))}) == 1


def test_what_is_written_shares_nothing_with_the_trial() -> None:
    config = dict(CONFIG)
    data = Trial(config, "ok", samples_us=(1.0,)).to_dict()
    data["config"]["BLOCK_M"] = 1
    assert config == CONFIG
