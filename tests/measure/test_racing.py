"""Races of launches whose times are known, with a stopwatch that says them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tunefa.measure import racing
from tunefa.measure.timing import HostStopwatch
from tunefa.spec.trial import Trial

US = {"a": 100.0, "b": 90.0, "c": 300.0}


class Told(HostStopwatch):
    """A stopwatch whose launches say their times, with a little noise."""

    def __init__(self) -> None:
        self.count = 0

    def times_us(self, launches: Sequence[Callable[[], Any]]) -> list[tuple[float, float]]:
        self.count += len(launches)
        return [(us := each() * (1 + 1e-4 * (self.count % 3)), us) for each in launches]


class Watch:
    """A monitor that sees a disturbance in the first races."""

    left = 0

    def __init__(self) -> None:
        self.disturbance = "heat" if Watch.left > 0 else None
        Watch.left -= 1

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self) -> None: ...


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "Monitor", Watch)
    monkeypatch.setattr(Watch, "left", 0)


def launch(name: str) -> Callable[[], float]:
    return lambda: US[name]


def trials(*names: str) -> list[Trial]:
    return [Trial({"name": name}, "ok") for name in names]


def raced(*names: str, default: str | None = None) -> Any:
    launches = [launch(name) for name in (*names, names[0])]
    run, _, refused = racing.run_races(Told(), launches, frozenset(), math.inf)
    return racing.decided(trials(*names), run, {"name": default} if default else None, refused)


def test_the_fastest_wins() -> None:
    found = raced("a", "b", "c", default="a")
    assert found.winner.config == {"name": "b"}
    assert found.certificate["gain_over_default"]["estimate"] == pytest.approx(0.11, abs=0.01)
    assert [trial.config["name"] for trial in found.trials] == ["b", "a", "c"]
    assert found.certificate["runner_up"]["config"] == {"name": "a"}


def test_a_disturbed_race_is_run_again() -> None:
    Watch.left = 1
    assert "refused" not in raced("a", "b", default="a").certificate


def test_a_race_that_stays_disturbed_leaves_the_default() -> None:
    Watch.left = 9
    found = raced("a", "b", default="a")
    assert found.winner.config == {"name": "a"}
    assert found.certificate["refused"] == "heat in 2 races"
    Watch.left = 9
    without = raced("a", "b")
    assert without.winner.config == {"name": "b"} and "not certified" in str(without.certificate)


@pytest.mark.parametrize(("least_us", "refused"), [(111.0, False), (114.0, True)])
def test_times_that_cannot_be_certify_nothing(least_us: float, refused: bool) -> None:
    """The fastest takes 90 us, which is 80 % of 112.5."""
    launches = [launch(name) for name in "aba"]
    _, _, why = racing.run_races(Told(), launches, frozenset(), math.inf, least_us)
    assert (why is not None) is refused
    if why:
        assert "median of 90.0 us, which cannot be" in why and "114.0 us, in 2 races" in why


def test_a_slow_launch_is_hardly_sampled() -> None:
    for name, best_us, count in [("a", math.inf, 5), ("a", 60.0, 5), ("c", 100.0, 2)]:
        assert len(racing.screened(Told(), launch(name), best_us)) == count


def test_samples_are_those_of_a_racer() -> None:
    run, _, _ = racing.run_races(Told(), [launch(x) for x in "aba"], frozenset(), math.inf)
    assert set(map(round, racing.samples_of(run, 1))) == {90}
    assert racing.plain(None) is None


def test_equals_are_decided_by_what_they_use() -> None:
    footprint = racing.footprint_of(trials("a", "b"))
    assert footprint(0) < footprint(1)
