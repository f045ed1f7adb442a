"""tunefa/store/trust.py: files that another user may have written are not used."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.fake_kernel import FakeKernel
from tests.support.sample_journals import FAILED, written
from tests.support.sample_records import measured
from tunefa import assets
from tunefa.cli import main
from tunefa.compile import cubin_cache
from tunefa.compile.nvrtc import Cubin
from tunefa.spec.target import Target
from tunefa.spec.trial import Resources
from tunefa.store import journal, trust
from tunefa.store import results as store
from tunefa.store.lookup import lookup
from tunefa.store.results import Store

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def planted() -> Path:
    """A record in the user's store."""
    return Store([store.user_root()]).add(measured())


def left_out() -> str:
    """The words of `tunefa doctor` on the one record, which is not used."""
    result = CliRunner().invoke(main, ["doctor", "--json"])
    report = json.loads(result.stdout)
    assert report["records"]["total"] == 0
    (problem,) = (each for each in report["problems"] if "results file left out" in each)
    return str(problem)


def test_own_files_are_used_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        path = Store([store.user_root()]).add(measured())
        held = written("20260101T000000", FAILED)
        cubin_cache.save("0123", Cubin(b"image", Resources()))
    finally:
        os.umask(before)
    assert store.default_store().records() == [measured()] and journal.paths() == [held]
    assert trust.why_not(path, store.user_root()) is None
    assert cubin_cache.load("0123") == Cubin(b"image", Resources())


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_folder_that_every_user_can_write(planted: Path, depth: int) -> None:
    """From the file's folder to TUNEFA_HOME itself."""
    folder = planted.parents[depth]
    folder.chmod(0o777)
    assert left_out() == (
        f"results file left out: every user can write the folder {folder}: look at what is there, "
        f"then use chmod o-w {folder}"
    )
    folder.chmod(0o1777)
    assert store.default_store().records() == [measured()], "only the owner can replace a file"
    folder.chmod(0o775)
    assert store.default_store().records() == [measured()], "a group is chosen on purpose"


def test_a_file_that_every_user_can_write(planted: Path) -> None:
    planted.chmod(0o666)
    assert f"every user can write {planted}: " in left_out()


@needs_root
def test_a_file_of_another_user(planted: Path) -> None:
    os.chown(planted, NOBODY, -1)
    said = left_out()
    assert f"{planted} belongs to another user (nobody): if you trust it, add it with" in said
    assert CliRunner().invoke(main, ["import", str(planted)]).exit_code == 0


@needs_root
def test_the_runtime_does_not_choose_a_planted_record(planted: Path) -> None:
    os.chown(planted, NOBODY, -1)
    workload, target = measured().workload, Target.named("h200")
    with pytest.warns(UserWarning, match="belongs to another user"):
        found = lookup(store.default_store(), workload, target, [FakeKernel()])
    assert found.how == "default"


def test_what_is_named_is_trusted(planted: Path) -> None:
    planted.chmod(0o666)
    assert Store([planted.parent]).records() == store.read(planted) == [measured()]


@needs_root
def test_a_journal_of_another_user_is_not_continued_unless_it_is_named() -> None:
    path = written("20260101T000000", FAILED)
    os.chown(path, NOBODY, -1)
    with pytest.warns(UserWarning, match=f"journal left out: {path} belongs to another user"):
        assert journal.paths() == []
    assert [trial for _, trial in journal.read(path)] == [FAILED]


def test_a_cubin_that_every_user_can_write_is_a_miss() -> None:
    cubin_cache.save("0123", Cubin(b"image", Resources()))
    (entry,) = (each for each in assets.cache().rglob("*.cubin"))
    entry.chmod(0o666)
    assert cubin_cache.load("0123") is None
    cubin_cache.save("0123", Cubin(b"image", Resources()))
    assert cubin_cache.load("0123") == Cubin(b"image", Resources())
