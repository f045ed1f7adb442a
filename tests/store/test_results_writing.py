from __future__ import annotations

import errno
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
from tests.support.sample_records import measured, predicted, records
from tunefa.errors import TunefaError
from tunefa.store import results as store
from tunefa.store.record import Record
from tunefa.store.results import Store


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@settings(deadline=None)
@given(some=st.lists(records(), max_size=3))
def test_read_gives_back_what_write_was_given(some: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "best.yaml")
        store.write(path, some)
        assert store.read(path) == some
        assert files(Path(folder)) == ["best.yaml"]


def test_write_replaces_results_and_empty_files(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    path.touch()
    store.write(path, [measured()])
    store.write(path, [predicted()])
    assert store.read(path) == [predicted()]


def test_write_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    link, path = tmp_path / "link.yaml", tmp_path / "best.yaml"
    link.symlink_to(path)
    store.write(link, [measured()])
    assert link.is_symlink()
    assert store.read(path) == [measured()]


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store.write(tmp_path / "best.yaml", [measured()])
    finally:
        os.umask(before)
    assert (tmp_path / "best.yaml").stat().st_mode & 0o777 == 0o640


def test_a_device_or_folder_is_not_replaced(tmp_path: Path) -> None:
    for path in (Path(os.devnull), tmp_path):
        with pytest.raises(TunefaError, match="is not a regular file"):
            store.write(path, [measured()])
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_any_failing_step_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    path = tmp_path / "best.yaml"
    store.write(path, [measured()])
    before = path.read_bytes()

    def fail(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(TunefaError, match=os.strerror(number)):
        store.write(path, [predicted()])
    assert path.read_bytes() == before
    assert files(tmp_path) == ["best.yaml"]


def test_ctrl_c_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "best.yaml"
    store.write(path, [measured()])

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write(path, [predicted()])
    assert store.read(path) == [measured()]
    assert files(tmp_path) == ["best.yaml"]


# A child process in which a limit of the system holds: prints the TunefaError it gets.
CHILD = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from tests.support.private_mounts import needs_mounts
from tests.support.sample_records import measured, predicted
from tunefa.store import results as store
from tunefa.errors import TunefaError
folder = Path({folder!r})
{limit}
try:
    store.write(folder / "best.yaml", [measured()] * 200)
except TunefaError as error:
    print(error)
print(sorted(p.name for p in folder.iterdir()))
print(store.read(folder / "best.yaml") == [predicted()])
"""


def run_child(folder: Path, limit: str, *prefix: str) -> list[str]:
    code = CHILD.format(path=sys.path, folder=str(folder), limit=textwrap.dedent(limit))
    result = subprocess.run(
        [*prefix, sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@needs_mounts
def test_full_disk(tmp_path: Path) -> None:
    limit = """
        import subprocess
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=True)
        store.write(folder / "best.yaml", [predicted()])
    """
    error, left, intact = run_child(tmp_path, limit, "unshare", "--map-root-user", "--mount")
    assert "best.yaml: No space left on device; nothing there was changed: free some space" in error
    assert (left, intact) == ("['best.yaml']", "True")


@needs_mounts
def test_read_only_disk(tmp_path: Path) -> None:
    limit = """
        import subprocess
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
        store.write(folder / "best.yaml", [predicted()])
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    """
    error, left, intact = run_child(tmp_path, limit, "unshare", "--map-root-user", "--mount")
    assert "best.yaml: Read-only file system" in error
    assert (left, intact) == ("['best.yaml']", "True")


def test_file_size_limit(tmp_path: Path) -> None:
    limit = """
        import resource
        store.write(folder / "best.yaml", [predicted()])
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    """
    error, left, intact = run_child(tmp_path, limit)
    assert "best.yaml: File too large" in error
    assert (left, intact) == ("['best.yaml']", "True")


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that may not be written, even by root: root works as `nobody` in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store.write(folder / "best.yaml", [measured()])
        folder.chmod(0o555)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


def test_read_only_folder(read_only_folder: Path) -> None:
    with pytest.raises(TunefaError, match=r"best\.yaml: Permission denied.*make the folder writ"):
        store.write(read_only_folder / "best.yaml", [predicted()])
    with pytest.raises(TunefaError, match="Permission denied"):
        Store([read_only_folder]).add(measured())
    assert store.read(read_only_folder / "best.yaml") == [measured()]
    assert files(read_only_folder) == ["best.yaml"]


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match="create the folder"):
        store.write(tmp_path / "gone" / "best.yaml", [measured()])
