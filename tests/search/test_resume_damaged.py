"""Going on with a journal that was damaged, or changed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_objective import Fake, Seen, request, user_store
from tunefa.errors import TunefaError
from tunefa.search import resume
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.request import Request, Result


def searched(asked: Request) -> Result:
    return search.search(asked, user_store(), Seen(10**9))


def continued(asked: Request, path: Path, trials: int) -> Request:
    return replace(asked, resume=path, budget=Budget(trials=trials))


def test_a_torn_line_in_the_middle_is_named(fake: type[Fake]) -> None:
    path = searched(request()).journal
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], lines[2][:20] + "\n", *lines[3:]]))
    before = path.read_bytes()
    for going_on in (
        lambda: resume.find(request(), path),
        lambda: searched(continued(request(), path, 9)),
    ):
        with pytest.raises(TunefaError, match=f"^{path}:3: this line is not a trial"):
            going_on()
    assert path.read_bytes() == before


def invent(path: Path, **values: Any) -> None:
    """Changes a journal's first trial by hand, without a checksum, as older lines are."""
    first, second, *rest = path.read_text().splitlines(keepends=True)
    trial = json.loads(second) | values
    del trial["checksum"]
    path.write_text(first + json.dumps(trial) + "\n" + "".join(rest))


@pytest.mark.parametrize(
    ("invented", "says"),
    [
        ({"samples_us": [0.001]}, "it has measured times, but this search measured nothing"),
        ({"predicted_us": 0.001}, "0.001 us is less than the 1 us that its workload takes at"),
        ({"config": {"BLOCK_M": [1]}}, "config must be a mapping"),
        ({"predicted_us": -1}, "predicted_us must be a positive number or null, not -1"),
    ],
)
def test_an_invented_time_becomes_no_record(
    fake: type[Fake], invented: dict[str, Any], says: str
) -> None:
    """It is refused where the journal is named; else the next older one is continued."""
    older, newer = searched(request()).journal, searched(request()).journal
    invent(newer, **invented)
    for going_on in (
        lambda: resume.find(request(), newer),
        lambda: searched(continued(request(), newer, 9)),
    ):
        with pytest.raises(TunefaError, match=f"^{newer}:2: .*{says}"):
            going_on()
    found = resume.find(request())
    assert found.path == older and f"A journal is left out: {newer}:2: " in found.message
    assert {record.median_us for record in user_store().records()} == {100.0}
