"""Files of records that something else changed, or that are no files."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.sample_records import measured, predicted
from tunefa.cli import main
from tunefa.errors import TunefaError
from tunefa.runtime.lock_file import LockFile
from tunefa.store import results as store

RECORDS = [measured(), predicted("q8192")]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock.yaml"
    store.write(path, RECORDS)
    return path


def test_no_truncation_of_a_lock_file_is_accepted(lock: Path) -> None:
    whole = lock.read_bytes()
    for size in range(0, len(whole), 2):
        lock.write_bytes(whole[:size])
        with pytest.raises(TunefaError, match=f"^{lock}:"):
            LockFile.read(lock)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.attack)])
def test_a_changed_byte_is_refused_or_means_the_same(lock: Path, count: int) -> None:
    whole, chance, refused = lock.read_bytes(), random.Random(0), 0
    for _ in range(count):
        at, bit = chance.randrange(len(whole)), 1 << chance.randrange(8)
        lock.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        try:
            assert list(LockFile.read(lock).records) == RECORDS
        except TunefaError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 0.9 * count


def test_who_changes_a_file_by_hand_is_told_how_to_go_on(lock: Path) -> None:
    changed = lock.read_text().replace("median_us: 412.5", "median_us: 400.0")
    lock.write_text(changed)
    result = CliRunner().invoke(main, ["import", str(lock)])
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: {lock}:1: the file was cut short or changed since tunefa wrote it, as its "
        "checksum says: restore it, or remove its first line to accept the change\n"
    )
    lock.write_text(changed.partition("\n")[2])
    assert [record.median_us for record in store.read(lock)] == [400.0, 400.0]
    lock.write_bytes(b"\xef\xbb\xbf" + changed.replace("400.0", "412.5").encode())
    assert store.read(lock) == RECORDS, "an editor adds a byte-order mark"
    lock.write_bytes(changed.replace("400.0", "412.5").replace("\n", "\r\n").encode())
    assert store.read(lock) == RECORDS, "Git for Windows changes the ends of lines"


@pytest.mark.timeout(60)
def test_what_is_no_file_among_the_results_is_passed_over(tmp_path: Path) -> None:
    home = store.user_root() / "sm90"
    home.mkdir(parents=True)
    os.mkfifo(home / "pipe.yaml")
    (home / "device.yaml").symlink_to("/dev/zero")
    (home / "folder.yaml").mkdir()
    store.Store([store.user_root()]).add(measured())
    result = CliRunner().invoke(main, ["show", "--json"])
    assert result.exit_code == 0 and '"kernel"' in result.stdout
    said = f"results file left out: cannot read {home}/pipe.yaml: It is not a regular file"
    assert said in result.stderr and f"{home}/device.yaml" in result.stderr
