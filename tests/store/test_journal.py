"""tunefa/store/journal.py: what a search leaves on disk, and what a crash or a full disk does."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.private_mounts import needs_mounts
from tests.support.sample_journals import FAILED, OK, bare
from tunefa.errors import TunefaError
from tunefa.spec.trial import OUTCOMES, Resources, Trial
from tunefa.store import journal
from tunefa.store.journal import Journal
from tunefa.store.journal_header import SCHEMA


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def test_trials_come_back_in_order() -> None:
    path = bare(OK, FAILED, OK)
    assert list(journal.read(path)) == [("a_kernel", OK), ("a_kernel", FAILED), ("a_kernel", OK)]


def test_the_file_says_what_it_is() -> None:
    path = bare(OK)
    assert path.parent == journal.folder()
    assert path.parent == Path(os.environ["TUNEFA_HOME"]) / "journals"
    assert path.suffix == ".jsonl" and "-sm90-fwd-" in path.name
    header, trial = (json.loads(line) for line in lines_of(path))
    assert len(header.pop("checksum")) == len(trial["checksum"]) == 16
    assert header == {"tunefa_journal": SCHEMA, "seed": 0}
    assert trial["kernel"] == "a_kernel" and trial["config"] == OK.config


def test_searches_that_begin_in_the_same_second_have_files_of_their_own() -> None:
    assert len({bare() for _ in range(20)}) == 20


_TIMES = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
_COUNTS = st.none() | st.integers(0, 2**40)
_TRIALS = st.builds(
    Trial,
    config=st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=4),
    outcome=st.sampled_from(OUTCOMES),
    reason=st.text(),
    resources=st.none() | st.builds(Resources, _COUNTS, _COUNTS, _COUNTS, _COUNTS),
    predicted_us=st.none() | _TIMES,
    samples_us=st.lists(_TIMES, max_size=3).map(tuple),
    error=st.none() | st.floats(min_value=0),
    compile_s=st.none() | _TIMES,
)


@settings(deadline=None, max_examples=50)
@given(trials=st.lists(_TRIALS, max_size=3))
def test_any_trial_comes_back_the_same(trials: list[Trial]) -> None:
    assert [trial for _, trial in journal.read(bare(*trials))] == trials


def test_the_errors_of_an_output_with_nan_and_infinity_come_back() -> None:
    nan = Trial({}, "wrong", error=float("nan"))
    far = Trial({}, "wrong", error=float("inf"))
    (_, first), (_, second) = journal.read(bare(nan, far))
    assert first.error is not None and first.error != first.error
    assert second == far and second.resources is None


def test_trials_of_a_race_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with Journal("x", {}) as open_one:
        open_one.append("a_kernel", OK, FAILED)
        assert list(journal.read(open_one.path)) == [("a_kernel", OK), ("a_kernel", FAILED)]
    assert len(synced) == 2, "once for the header"


def test_every_trial_is_on_disk_before_the_next() -> None:
    with Journal("x", {}) as open_one:
        for count in range(3):
            assert len(list(journal.read(open_one.path))) == count
            open_one.append("a_kernel", OK)
        with pytest.raises(FileExistsError):
            open(open_one.path, "x").close()


def test_a_torn_last_line_ends_the_journal() -> None:
    path = bare(OK, FAILED)
    whole = path.read_bytes()
    last = len(lines_of(path)[-1].encode())
    for torn in range(1, last):
        path.write_bytes(whole[:-torn])
        trials = [trial for _, trial in journal.read(path)]
        assert trials == ([OK, FAILED] if torn == 1 else [OK])  # 1: only the line's end is missing


def test_blocks_of_zeros_at_the_end_as_a_power_cut_leaves_them() -> None:
    path = bare(OK)
    path.write_bytes(path.read_bytes() + bytes(512))
    assert [trial for _, trial in journal.read(path)] == [OK]


@pytest.mark.parametrize(
    "line",
    [
        '{"kernel": "a_kernel", "conf',
        "",
        "5",
        "[]",
        '"text"',
        "null",
        '{"config": {}, "outcome": "ok"}',
        '{"kernel": "a_kernel", "outcome": "ok"}',
        '{"kernel": "a_kernel", "config": {}}',
        '{"kernel": "a_kernel", "config": {}, "outcome": "fine"}',
        '{"kernel": "a_kernel", "config": {}, "outcome": "ok", "more": 1}',
        '{"kernel": "a_kernel", "config": {}, "outcome": "ok", "resources": {"smem": 1}}',
        '{"kernel": "a_kernel", "config": {}, "outcome": "ok", "samples_us": 3}',
    ],
)
def test_a_line_in_the_middle_that_does_not_hold_is_named(line: str) -> None:
    path = bare(OK, FAILED)
    header, first, second = lines_of(path)
    path.write_text(f"{header}{first}{line}\n{second}", encoding="utf-8")
    found = journal.read(path)
    assert next(found) == ("a_kernel", OK)
    with pytest.raises(TunefaError, match=f"^{path}:3: this line is not a trial"):
        next(found)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'{"tunefa_journal": 5}\n', r":1: was written by a newer tunefa \(schema 5.*: upgrade"),
        (b'{"journal": 1}\n{}\n', r":1: this is not a journal of tunefa"),
        (b"[1]\n{}\n", r":1: this is not a journal of tunefa"),
        (b"hello\nthere\n", r":1: this line is not the first line of a journal"),
        (b"\xff\xfe\x00", r" is not a journal: it is not UTF-8"),
    ],
)
def test_what_is_no_journal(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(TunefaError, match=f"^{path}{error}"):
        list(journal.read(path))


@pytest.mark.parametrize("content", ["", '{"tunefa_journal', '{"tunefa_journal": 1}\n'])
def test_a_search_that_died_at_once_leaves_a_journal_without_trials(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(content)
    assert list(journal.read(path)) == []


def test_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.jsonl", tmp_path):
        with pytest.raises(TunefaError, match=f"^{path} cannot be read: "):
            list(journal.read(path))


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that may not be written, even by root: root works as `nobody` in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


def test_a_folder_that_cannot_be_written(
    read_only_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFA_HOME", str(read_only_folder))
    why = r"journal .*\.jsonl cannot be written: Permission denied: .*set TUNEFA_HOME to another"
    with pytest.raises(TunefaError, match=why):
        Journal("x", {})


def test_a_file_where_the_folder_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "file"))
    with pytest.raises(TunefaError, match="cannot be written: Not a directory: set TUNEFA_HOME"):
        Journal("x", {})


# A child process in which a limit of the system holds: writes until it is told that it cannot.
CHILD = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from tests.support.sample_journals import OK
from tunefa.store import journal
from tunefa.errors import TunefaError
folder = Path({folder!r})
{limit}
os.environ["TUNEFA_HOME"] = str(folder)
written = 0
try:
    with journal.Journal("x", {{"long": "-" * {header}}}) as open_one:
        for written in range(1000):
            open_one.append("a_kernel", OK)
except TunefaError as error:
    print(error)
(path,) = journal.folder().iterdir()
print([trial for _, trial in journal.read(path)] == [OK] * written)
"""
FULL_DISK = """
    import subprocess
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=True)
"""
SMALL_FILES = """
    import resource, signal
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
"""


def run_child(folder: Path, limit: str, *prefix: str, header: int = 0) -> list[str]:
    code = CHILD.format(
        path=sys.path, folder=str(folder), limit=textwrap.dedent(limit), header=header
    )
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.splitlines()


@needs_mounts
@pytest.mark.parametrize("header", [0, 20000])
def test_full_disk(tmp_path: Path, header: int) -> None:
    error, intact = run_child(
        tmp_path, FULL_DISK, "unshare", "--map-root-user", "--mount", header=header
    )
    assert "cannot be written: No space left on device: free space or set TUNEFA_HOME" in error
    assert intact == "True"


@pytest.mark.parametrize("header", [0, 20000])
def test_file_size_limit(tmp_path: Path, header: int) -> None:
    error, intact = run_child(tmp_path, SMALL_FILES, header=header)
    assert "cannot be written: File too large" in error
    assert intact == "True"


def test_a_compressed_journal_reads_as_the_plain_one(tmp_path: Path) -> None:
    plain = bare(OK, FAILED)
    packed = tmp_path / "some.jsonl.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    assert list(journal.read(packed)) == list(journal.read(plain))
    assert journal.header(packed) == journal.header(plain)


def test_a_torn_compressed_journal_is_an_error(tmp_path: Path) -> None:
    whole = lzma.compress(bare(OK).read_bytes())
    packed = tmp_path / "some.jsonl.xz"
    for torn in (whole[:-1], whole[: len(whole) // 2], b"", b"plain text"):
        packed.write_bytes(torn)
        with pytest.raises(TunefaError, match=f"^{packed} is incomplete or no .xz file"):
            list(journal.read(packed))


def test_a_compressed_journal_is_not_written_to(tmp_path: Path) -> None:
    packed = tmp_path / "some.jsonl.xz"
    packed.write_bytes(lzma.compress(bare(OK).read_bytes()))
    before = packed.read_bytes()
    with pytest.raises(TunefaError, match="compressed"):
        Journal.reopened(packed)
    assert packed.read_bytes() == before
