"""tunefa/store/landscape.py: what a journal recorded, and how far each config is from the best."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_objective import KERNEL, TARGET, WORKLOAD
from tests.support.sample_landscapes import CONFIGS, compressed, raced, trial
from tunefa.errors import TunefaError
from tunefa.spec.trial import Trial, identity
from tunefa.store import landscape

A, B, C, D = CONFIGS[:4]
NAME = KERNEL.name


def excess(tmp_path: Path, *trials: Trial) -> dict[tuple[object, ...], float]:
    return landscape.load(compressed(trials, tmp_path / "l.jsonl.xz")).excess(NAME)


def test_a_landscape_says_what_was_searched_and_what_became_of_it(tmp_path: Path) -> None:
    first, failed = trial(A, 100.0, 101.0, 99.0), Trial(B, "compile_failed", "no")
    after = raced(first, *[98.0] * 6)
    found = landscape.load(compressed([first, failed, after], tmp_path / "l.jsonl.xz"))
    assert (found.workload, found.target) == (WORKLOAD, TARGET)
    assert str(found.target) == "NVIDIA H200 (sm90)"
    assert found.kernels == [NAME] and found.measured
    assert list(found.trials(NAME)) == [first, failed]
    assert found.screened(NAME, A) == first and found.raced(NAME, A) == after
    assert found.screened(NAME, B) == failed and found.raced(NAME, B) is None
    # The order of a config's values does not make another config of it.
    assert found.screened(NAME, dict(reversed(A.items()))) == first


def test_a_config_that_it_does_not_hold_is_refused_by_name(tmp_path: Path) -> None:
    found = landscape.load(compressed([trial(A, 100.0)], tmp_path / "small.jsonl.xz"))
    refused = found.screened(NAME, B)
    assert refused.outcome == "refused" and refused.config == B
    assert "small.jsonl.xz" in refused.reason


def test_a_predicted_search_is_a_landscape_too(tmp_path: Path) -> None:
    found = landscape.load(compressed([trial(A), trial(B)], tmp_path / "l.jsonl.xz"))
    assert not found.measured
    assert found.excess(NAME) == {identity(A): 0.0, identity(B): 0.0}


def test_excess_without_a_race_is_that_of_the_medians(tmp_path: Path) -> None:
    found = excess(tmp_path, trial(A, 100.0), trial(B, 130.0, 110.0, 90.0), Trial(C, "wrong", "no"))
    assert found == {identity(A): 0.0, identity(B): pytest.approx(0.1)}


def test_excess_of_racers_is_compared_within_rounds(tmp_path: Path) -> None:
    """The device slows down by half; B was out before, and is no faster than A for that."""
    screened = [trial(A, 100.0), trial(B, 99.0)]
    slowing = raced(screened[0], 100.0, 100.0, 150.0, 150.0, 150.0)
    found = excess(tmp_path, *screened, slowing, raced(screened[1], 104.0, 104.0))
    assert found == {identity(A): 0.0, identity(B): pytest.approx(0.04)}


def test_excess_puts_screenings_on_the_scale_of_the_race(tmp_path: Path) -> None:
    """Racers were 1.1 times as far apart as in the screening; so is who did not race."""
    screened = [trial(A, 100.0), trial(B, 100.0), trial(C, 100.0), trial(D, 200.0)]
    times = (100.0, 110.0, 110.0)
    races = [raced(t, *[us] * 6) for t, us in zip(screened, times, strict=False)]
    assert excess(tmp_path, *screened, *races)[identity(D)] == pytest.approx(1.2)


def test_excess_is_that_of_the_last_race_of_a_search_that_was_continued(tmp_path: Path) -> None:
    """The device was twice as slow in the second race, in which A and B ran, and C and D not."""
    screened = [trial(A, 100.0), trial(B, 102.0), trial(C, 104.0)]
    once = [raced(t, *[us] * 6) for t, us in zip(screened, (100.0, 110.0, 101.0), strict=True)]
    again = [raced(screened[1], *[200.0] * 6), raced(screened[0], *[208.0] * 6)]
    for later in ([trial(D, 103.0)], []):
        found = excess(tmp_path, *screened, *once, *later, *again)
        assert found[identity(B)] == 0.0 and found[identity(A)] == pytest.approx(0.04)
        # By its screening, on the scale of that race: 1.04 and 1 for 100 and 102.
        scale = (1.04 / 100 + 1 / 102) / 2
        assert found[identity(C)] == pytest.approx(104 * scale - 1)


def test_races_of_two_kernels_are_two(tmp_path: Path) -> None:
    path = compressed([trial(A, 100.0), raced(trial(A), *[90.0] * 6)], tmp_path / "l.jsonl.xz")
    (only,) = landscape.load(path).racers
    assert only == (NAME, identity(A))
    assert landscape._racers([("x", (1,)), ("x", (1,)), ("y", (1,)), ("y", (1,))]) == {
        ("x", (1,)),
        ("y", (1,)),
    }


def test_a_finalist_found_wrong_counts_as_failed(tmp_path: Path) -> None:
    first = trial(A, 90.0)
    wrong = Trial(A, "wrong", "not on the real shape")
    assert excess(tmp_path, first, trial(B, 100.0), wrong) == {identity(B): 0.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "nonsense"},
        {"arch": "sm1"},
        {"device": "NVIDIA T4"},
        {"provenance": {}, "workload": "fwd"},
    ],
)
def test_a_header_that_does_not_say_what_was_searched(
    changes: dict[str, object], tmp_path: Path
) -> None:
    path = compressed([trial(A, 1.0)], tmp_path / "l.jsonl.xz", **changes)
    with pytest.raises(TunefaError, match=rf"^{path}:1: does not say what was searched: "):
        landscape.load(path)


def test_nothing_to_replay(tmp_path: Path) -> None:
    path = compressed([], tmp_path / "l.jsonl.xz")
    with pytest.raises(TunefaError, match="holds no trials"):
        landscape.load(path)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(TunefaError, match="no complete first line"):
        landscape.load(empty)
