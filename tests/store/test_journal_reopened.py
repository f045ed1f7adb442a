"""tunefa/store/journal.py: journals that are found again, and appended to after a crash."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.sample_journals import FAILED, OK, bare
from tunefa.errors import TunefaError
from tunefa.store import journal
from tunefa.store.journal import Journal
from tunefa.store.journal_header import SCHEMA


def appended(path: Path) -> list[str]:
    with Journal.reopened(path) as going_on:
        going_on.append("a_kernel", FAILED)
    return [trial.outcome for _, trial in journal.read(path)]


def test_wherever_it_is_torn_no_whole_line_is_lost() -> None:
    path = bare(OK, OK)
    whole = path.read_bytes()
    ends = [found.end() for found in re.finditer(b"\n", whole)]
    for size in range(ends[0] - 1, len(whole) + 1):  # the header whole, with or without its end
        path.write_bytes(whole[:size])
        lines = sum(end - 1 <= size for end in ends)
        assert appended(path) == ["ok"] * (lines - 1) + ["compile_failed"]
        assert path.read_bytes().startswith(whole[: ends[lines - 1]])


@pytest.mark.parametrize("tail", [bytes(512), b"\xff\xfe{", b'{"kernel": "a_kernel"}\n', b"\n"])
def test_what_a_power_cut_leaves_is_cut_off(tail: bytes) -> None:
    path = bare(OK)
    path.write_bytes(path.read_bytes() + tail)
    assert appended(path) == ["ok", "compile_failed"]


def test_without_a_header_there_is_nothing_to_continue() -> None:
    path = bare()
    for content in (b"", path.read_bytes()[:-2]):
        path.write_bytes(content)
        assert journal.header(path) == {}
        with pytest.raises(TunefaError, match=f"^{path} has no complete first line"):
            Journal.reopened(path)
        assert path.read_bytes() == content


def test_a_torn_middle_is_not_touched() -> None:
    path = bare(OK, OK)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"kernel": "a\n' + lines[2])
    before = path.read_bytes()
    with pytest.raises(TunefaError, match=f"^{path}:2: this line is not a trial"):
        Journal.reopened(path)
    assert path.read_bytes() == before


def test_one_writer_at_a_time() -> None:
    with Journal("x", {}) as first:
        with pytest.raises(TunefaError, match=f"a search that still runs writes .*{first.path}"):
            Journal.reopened(first.path)
        first.append("a_kernel", OK)
    assert appended(first.path) == ["ok", "compile_failed"]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"cannot be written: No such file"):
        Journal.reopened(tmp_path / "gone.jsonl")


def test_the_header_comes_back() -> None:
    assert journal.header(bare(OK)) == {"tunefa_journal": SCHEMA, "seed": 0}


def test_the_newest_is_first() -> None:
    assert journal.paths() == []
    made = [bare() for _ in range(4)]
    for age, path in enumerate(reversed(made)):  # all began in one second, more or less
        os.utime(path, (10**9 - age, 10**9 - age))
        path.rename(path.with_name("20260101T000000" + path.name[15:]))
    (journal.folder() / "20250101T000000-old.jsonl").touch()
    (journal.folder() / "notes.txt").touch()
    names = [path.name[15:] for path in journal.paths()]
    assert names == [*(path.name[15:] for path in reversed(made)), "-old.jsonl"]
