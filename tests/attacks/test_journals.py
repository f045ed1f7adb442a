"""Journals that something else changed: each is refused in one sentence, or means the same."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.sample_journals import FAILED, written
from tunefa.cli import main
from tunefa.errors import TunefaError
from tunefa.spec.trial import MemoryPlan, Resources, Trial
from tunefa.store import journal

OK = Trial(
    {"BLOCK_M": 64, "ORDER": "heavy_first", "PACK": True},
    "ok",
    resources=Resources(smem_bytes=49152, registers=168, planned=MemoryPlan({"ub": -0.5})),
    predicted_us=512.5,
    samples_us=(512.5, 513.25),
    error=0.0011,
    compile_s=1.25,
)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**400, float("nan"), float("-inf"), "x", "\ud800", [1], {"a": {}},
)  # fmt: skip


def meaning(path: Path) -> tuple[dict[str, Any], list[tuple[str, Trial]]]:
    return journal.header(path), list(journal.read(path))


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in parsed JSON."""
    if at:
        yield at
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from places(data[key], (*at, key))


def replaced(line: str, at: tuple[Any, ...], value: Any) -> str:
    """The line with another value at that path, and without its checksum, as older ones are."""
    data = json.loads(line)
    data.pop("checksum", None)
    holder = data
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = value
    return json.dumps(data) + "\n"


def hand_made(lines: list[str]) -> Iterator[list[str]]:
    """Every value of the header and of the first trial replaced by every odd one."""
    for number in (0, 1):
        for at in places(json.loads(lines[number])):
            if at[0] != "checksum":
                for value in ODD:
                    yield [
                        *lines[:number],
                        replaced(lines[number], at, value),
                        *lines[number + 1 :],
                    ]


def test_a_value_of_a_wrong_type_or_sign_is_one_sentence() -> None:
    path = written("20260101T000000", OK, FAILED)
    lines = path.read_text().splitlines(keepends=True)
    refused = read = 0
    for changed in hand_made(lines):
        path.write_text("".join(changed))
        try:
            header, trials = meaning(path)
        except TunefaError as error:
            assert str(error).startswith(f"{path}:") and "\n" not in str(error)
            refused += 1
            continue
        read += 1
        # What is read is what is written there: nothing was guessed.
        assert header == {k: v for k, v in json.loads(changed[0]).items() if k != "checksum"}
        kernel, trial = trials[0]
        said = json.loads(changed[1])
        said.pop("checksum", None)
        assert said.pop("elapsed_s", None) == next(journal.read_timed(path))[2]
        given = {"kernel": kernel, **trial.to_dict()}
        assert len(trials) == 2
        if said["resources"] != json.loads(lines[1])["resources"]:
            given["resources"] = said["resources"]  # what is left out there is null here
        assert repr(json.loads(json.dumps(given))) == repr(said)
    assert refused > 300 and read > 50


def flipped(whole: bytes, chance: random.Random) -> bytes:
    """The bytes with one of them changed, left out or doubled, or with a piece cut out."""
    at = chance.randrange(len(whole))
    how = chance.randrange(4)
    if how == 0:
        return whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :]
    if how == 1:
        return whole[:at] + whole[at : at + 1] + whole[at:]
    return whole[:at] + whole[at + chance.randrange(1, 40 if how == 2 else 2) :]


@pytest.mark.parametrize(
    "count", [400, pytest.param(20_000, marks=[pytest.mark.attack, pytest.mark.timeout(900)])]
)
def test_a_changed_byte_is_refused_or_means_the_same(count: int) -> None:
    """The last line may be left out, as a crash leaves half of one, and may have become two."""
    path = written("20260101T000000", OK, FAILED, OK)
    whole = path.read_bytes()
    header, trials = meaning(path)
    chance, refused = random.Random(0), 0
    for _ in range(count):
        path.write_bytes(flipped(whole, chance))
        try:
            found = meaning(path)
        except TunefaError as error:
            assert "\n" not in str(error)
            refused += 1
            continue
        assert found[1] == trials[: len(found[1])] and len(found[1]) >= len(trials) - 2
        assert {name: found[0].get(name) for name in header} == header
    assert refused > count / 2


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"BLOCK_M": [1]}},
        {"config": 5},
        {"kernel": 5},
        {"kernel": [1]},
        {"samples_us": ["a"]},
        {"samples_us": [-1.0]},
        {"resources": {"registers": "x"}},
        {"reason": 5},
    ],
)
def test_one_bad_journal_does_not_hide_the_others(change: dict[str, Any]) -> None:
    written("20260101T000000", FAILED)
    bad = written("20260102T000000", FAILED, FAILED)
    first, second, *rest = bad.read_text().splitlines(keepends=True)
    changed = json.loads(second) | change
    del changed["checksum"]
    bad.write_text(first + json.dumps(changed) + "\n" + "".join(rest))
    result = CliRunner().invoke(main, ["show", "--failures", "--json"])
    assert result.exit_code == 0, result.exception
    assert len(json.loads(result.stdout)["failures"]) == 1
    assert f"left out: {bad}:2: this line is not a trial: " in result.stderr


def test_a_pipe_among_the_journals_is_passed_over() -> None:
    written("20260101T000000", FAILED)
    os.mkfifo(journal.folder() / "20260102T000000-pipe.jsonl")
    result = CliRunner().invoke(main, ["show", "--failures", "--json"])
    assert len(json.loads(result.stdout)["failures"]) == 1
    assert "cannot be read: It is not a regular file" in result.stderr
