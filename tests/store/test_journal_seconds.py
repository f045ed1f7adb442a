"""tunefa/store/journal.py: the seconds since the search began, with each trial."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.support.sample_journals import FAILED, OK, bare
from tunefa.errors import TunefaError
from tunefa.store import journal
from tunefa.store.journal import Journal


def test_a_trial_comes_with_the_seconds_since_the_search_began() -> None:
    with Journal("x", {}) as one:
        for _ in range(3):
            time.sleep(0.002)
            one.append("a_kernel", OK)
    seconds = [found for *_, found in journal.read_timed(one.path)]
    assert all(found is not None and found < 60 for found in seconds)
    assert seconds == sorted(set(seconds), key=lambda found: found or 0.0)


@pytest.mark.parametrize("seconds", ["-1", "true", '"1"', "1e999"])
def test_seconds_are_a_number(seconds: str) -> None:
    path = bare(OK, OK)
    first, second, third = path.read_text().splitlines(keepends=True)
    second = re.sub(r'"elapsed_s": [0-9.]+', f'"elapsed_s": {seconds}', second)
    second = re.sub(r', "checksum": "[^"]*"', "", second)
    path.write_text(first + second + third)
    with pytest.raises(TunefaError, match=":2: this line is not a trial: elapsed_s must be"):
        list(journal.read(path))


def append(path: Path) -> None:
    with Journal.reopened(path) as going_on:
        going_on.append("a_kernel", FAILED)


def seconds(path: Path) -> list[float | None]:
    return [found for *_, found in journal.read_timed(path)]


def test_the_seconds_go_on_where_the_search_ended() -> None:
    path = bare(OK)
    header, trial = path.read_text().splitlines()
    trial = re.sub(r'"elapsed_s": [0-9.]+', '"elapsed_s": 1000.5', trial)
    trial = re.sub(r', "checksum": "[^"]*"', "", trial)
    path.write_text(f"{header}\n{trial}\n")
    append(path)
    first, then = seconds(path)
    assert first == 1000.5 and then is not None and 1000.5 <= then < 1100


def test_a_journal_of_an_older_tunefa_stays_without_seconds() -> None:
    path = bare(OK)
    header, trial = path.read_text().splitlines()
    trial = re.sub(r'"elapsed_s": [0-9.]+, |, "checksum": "[^"]*"', "", trial)
    path.write_text(f"{header}\n{trial}\n")
    append(path)
    assert seconds(path) == [None, None]
    assert "elapsed_s" not in path.read_text()
