"""export --frozen, and what doctor says of TUNEFA_FROZEN."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import measured, predicted
from tunefa.store import results as store
from tunefa.store.record import Record


def test_a_lock_file_is_the_best_measured_and_always_the_same_bytes(
    run: Run, lockable: list[Record], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = run("export", "a.lock.yaml", "--frozen")
    assert "Wrote 2 records as yaml to a.lock.yaml." in out.stdout and out.stderr == ""
    assert f"env TUNEFA_FROZEN={Path('a.lock.yaml').resolve()} python train.py" in out.stdout
    assert store.read(Path("a.lock.yaml")) == [lockable[1], lockable[0]]
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "another"))
    for each in reversed(lockable):
        store.default_store().add(each)
    run("export", "b.lock.yaml", "--frozen")
    assert Path("b.lock.yaml").read_bytes() == Path("a.lock.yaml").read_bytes()


def test_a_file_becomes_a_lock_file(run: Run, lockable: list[Record]) -> None:
    store.write(Path("all.yaml"), lockable)
    run("export", "a.lock.yaml", "--frozen", "--from", "all.yaml", "--seqlen", "8192")
    assert store.read(Path("a.lock.yaml")) == [lockable[0]]


def test_what_cannot_be_served_here_is_said(run: Run) -> None:
    for workload in ("q4096", "q8192"):
        store.default_store().add(measured(workload))
    error = run("export", "a.lock.yaml", "--frozen").stderr
    said = "Warning: this machine cannot use 2 records (fwd_b1_h32_kv8_q4096_k4096_d128_bf16"
    assert error.startswith(said)
    assert "source_hash 0123abcd, but this machine has " in error and error.count("\n") == 1


def test_mistakes_in_a_lock_file(run: Run) -> None:
    store.default_store().add(predicted())
    error = run("export", "a.lock.yaml", "--frozen", code=1).stderr
    assert "none of 1 record in the store matches and was measured" in error
    error = run("export", "a.json", "--frozen", code=2).stderr
    assert "--frozen writes YAML: name DEST *.yaml" in error


def test_help_says_how_to_use_it(run: Run) -> None:
    text = " ".join(run("export", "--help").stdout.split())
    assert "setting TUNEFA_FROZEN to its path, or by calling tunefa.load(DEST, frozen=True)" in text
