"""tunefa/measure/race.py: who wins, against latencies drawn with a drift that all racers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from tests.support.clock import Clock
from tunefa.measure import race
from tunefa.measure.race import Race


def device(
    true_us: Sequence[float], noise: float, seed: int = 0
) -> Callable[[Sequence[int]], list[float]]:
    """Times racers of these latencies; a drift of 20 % comes and goes, shared within a round."""
    random = np.random.default_rng(seed)
    rounds = iter(range(10**6))

    def time_us(order: Sequence[int]) -> list[float]:
        drift = 1.0 + 0.1 * np.sin(next(rounds) / 5.0)
        return [float(true_us[i] * drift * np.exp(random.normal(0, noise))) for i in order]

    return time_us


def footprint(racer: int) -> tuple[int, ...]:
    return (racer,)


def test_order_rotates_and_each_round_times_every_survivor() -> None:
    orders = []

    def time_us(order: Sequence[int]) -> list[float]:
        orders.append(list(order))
        return [1.0 for _ in order]

    run = Race(3)
    for _ in range(4):
        run.add_round(time_us)
    assert orders == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    run.dropped[1] = 4
    run.add_round(time_us)
    assert sorted(orders[-1]) == [0, 2] and np.isnan(run.samples_us[-1][1])


@pytest.mark.parametrize("seed", range(20))
def test_a_winner_by_two_percent_is_found_through_twenty_percent_of_drift(seed: int) -> None:
    true = [102.0, 100.0, 105.0, 130.0, 102.0]  # the last is the first again
    run = race.run(5, frozenset({2}), device(true, 0.004, seed))
    decision = race.decide(run, 2, footprint)
    assert decision.winner == 1
    assert decision.gain is not None and decision.gain.low > decision.noise_floor
    assert decision.gain.estimate == pytest.approx(0.05, abs=0.01)
    assert 3 in run.dropped and 2 not in run.dropped and decision.noise_floor < 0.01


def test_equals_go_to_the_default_whatever_seed() -> None:
    for seed in range(20):
        true = [100.0, 100.0, 100.0, 100.0]
        run = race.run(4, frozenset({1}), device(true, 0.004, seed))
        decision = race.decide(run, 1, lambda racer: (-racer,))
        assert decision.winner == 1 and decision.gain is None


def test_equals_without_a_default_go_to_the_smallest() -> None:
    run = race.run(4, frozenset(), device([100.0, 100.0, 100.0, 100.0], 0.004))
    decision = race.decide(run, None, lambda racer: (9 - racer,))
    assert decision.winner == 2 and "equally fast" in decision.why


@pytest.mark.parametrize("seed", range(20))
def test_lucky_once_never_wins(seed: int) -> None:
    """One sample at half the time, as a config that ran while the device was cool."""
    timer = device([100.0, 103.0, 104.0, 100.0], 0.004, seed)
    first = True

    def time_us(order: Sequence[int]) -> list[float]:
        nonlocal first
        samples = timer(order)
        if first:
            samples[list(order).index(1)] /= 2
        first = False
        return samples

    run = race.run(4, frozenset({2}), time_us)
    assert race.decide(run, 2, footprint).winner == 0


def test_a_gain_below_the_noise_floor_keeps_the_default() -> None:
    run = race.run(4, frozenset({1}), device([100.0, 101.0, 110.0, 101.5], 0.001))
    decision = race.decide(run, 1, footprint)  # the twin alone is off by 1.5 %
    assert decision.winner == 1 and decision.gain is None
    assert decision.noise_floor >= 0.014
    assert "default" in decision.why


def test_a_race_without_time_has_two_looks() -> None:
    close = [100.0, 100.1, 100.2, 100.0]
    assert len(race.run(4, frozenset(), device(close, 0.05), until=0.0).samples_us) == 12
    assert len(race.run(4, frozenset(), device(close, 0.05)).samples_us) == race.MAX_ROUNDS


def test_a_race_ends_at_the_first_look_after_its_time(clock: Clock) -> None:
    times = iter(range(10**6))

    def time_us(order: Sequence[int]) -> list[float]:
        clock.sleep(0.25)
        return [100.0 + next(times) % 7 for _ in order]

    for until_s, rounds in ((4.5, 18), (4.75, 24), (6.0, 24)):
        run = race.run(3, frozenset(), time_us, until=clock.now + until_s)
        assert len(run.samples_us) == rounds


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        found = race.interval(random.normal(0.02, 0.01, 30))
        covered += found.low <= np.expm1(0.02) <= found.high
    assert 0.88 <= covered / 300 <= 0.99


def test_the_same_samples_give_the_same_interval() -> None:
    samples = np.random.default_rng(0).normal(0.0, 0.01, 20)
    assert race.interval(samples) == race.interval(samples)


@pytest.mark.parametrize("count", [6, 12, 60])
@pytest.mark.parametrize("confidence", [race.CONFIDENCE, 1.0 - race.DROP_LEVEL / 7])
def test_an_interval_is_that_of_scipy(count: int, confidence: float) -> None:
    samples = np.random.default_rng(count).normal(0.01, 0.01, count)
    expected = stats.bootstrap(
        (samples,), np.median, n_resamples=2000, confidence_level=confidence, method="percentile",
        random_state=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    found = race.interval(samples, confidence)
    wanted = np.expm1([np.median(samples), expected.low, expected.high])
    assert (found.estimate, found.low, found.high) == pytest.approx(wanted, rel=1e-12)


def test_the_runner_up_may_have_been_dropped() -> None:
    run = race.run(4, frozenset({2}), device([100.0, 103.0, 110.0, 100.0], 0.002))
    decision = race.decide(run, 2, footprint)
    assert 1 in run.dropped and decision.runner_up == 1
    assert run.difference(1, 0).estimate == pytest.approx(0.03, abs=0.005)
