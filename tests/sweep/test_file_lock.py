"""tunefa/sweep/file_lock.py: one writer at a time, and nothing is left by those that are killed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tests.support.tree import TREE
from tunefa.sweep.file_lock import FileLock

HOLDER = """
import sys
from pathlib import Path
from tunefa.sweep.file_lock import FileLock
path = Path(sys.argv[1])
FileLock(path).acquire()
with open(path, "ab") as file:
    file.write(b'{"op_code": 2, "half')
print("held", flush=True)
sys.stdin.read()
"""


def test_it_excludes_others(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    path.touch()
    lock = FileLock(path)
    assert lock.acquire() is True
    with open(f"{path}.flock") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.release()
    with open(f"{path}.flock") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.release()  # twice does nothing


def test_a_killed_holder_leaves_neither_lock_nor_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    storage = JournalStorage(JournalFileBackend(str(path), FileLock(path)))
    study = optuna.create_study(storage=storage, study_name="s")
    study.set_user_attr("before", 1)
    whole = path.read_bytes()
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        os.kill(process.pid, signal.SIGKILL)
    assert path.read_bytes() != whole
    study.set_user_attr("after", 2)
    again = JournalStorage(JournalFileBackend(str(path), FileLock(path)))
    attrs = optuna.load_study(study_name="s", storage=again).user_attrs
    assert attrs == {"before": 1, "after": 2}
    assert b"half" not in path.read_bytes()


def test_a_folder_that_is_gone_is_an_error_and_leaves_nothing_locked(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        FileLock(tmp_path / "gone" / "study.log").acquire()
    with pytest.raises(FileNotFoundError):  # there is a folder, but no study
        FileLock(tmp_path / "study.log").acquire()
    (tmp_path / "study.log").touch()
    assert FileLock(tmp_path / "study.log").acquire()
