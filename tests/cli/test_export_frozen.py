"""export --frozen: what a lock file holds, and what is said of the rest."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.made_here import CUDA, made_here
from tests.support.sample_records import predicted
from tunefa.compile import nvrtc
from tunefa.runtime.lock_file import MARK
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
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


LOCK = ("export", "a.lock.yaml", "--frozen")
OLD = {"triton": "3.6.0"}
FOREIGN = {"source_hash": "0123"}


def held(*records: Record) -> None:
    for record in records:
        store.default_store().add(record)


def only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the records that tunefa ships."""
    monkeypatch.setattr(store, "shipped_root", lambda: Path("nothing"))


def test_what_is_left_out_is_said_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    only_these(monkeypatch)
    held(made_here("q1024"), made_here("q2048", OLD), made_here("q8192", FOREIGN))
    found = run(*LOCK)
    assert "Wrote 1 record as yaml to a.lock.yaml.\n" in found.stdout
    assert "TUNEFA_FROZEN=" in found.stdout
    assert found.stderr.startswith(
        "Warning: left out 2 of 3 records (1 measured with Triton 3.6.0,"
    )
    assert "; 1 measured with another source of attention_fwd_triton (0123, and " in found.stderr
    end = "): run 'tunefa verify' on NVIDIA H200, or add --unconfirmed\n"
    assert found.stderr.endswith(end) and found.stderr.count("\n") == 1
    assert [str(r.workload).split("_")[4] for r in store.read(Path("a.lock.yaml"))] == ["q1024"]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_nothing_left_is_not_written_and_not_recommended(
    run: Run, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these(monkeypatch)
    held(made_here("q2048", OLD), made_here("q8192", OLD))
    found = run(*LOCK, *more, code=3)
    assert found.stdout == "" and not Path("a.lock.yaml").exists()
    assert found.stderr.startswith("Nothing was written, as none of 2 records serves (2 measured ")
    assert found.stderr.count("\n") == 1 and "or add --unconfirmed" in found.stderr
    held(made_here("q2048", FOREIGN), made_here("q8192", FOREIGN))
    store.write(Path("foreign.yaml"), [made_here("q8192", FOREIGN)])
    found = run(*LOCK, "--unconfirmed", "--from", "foreign.yaml", *more, code=3)
    assert "add --unconfirmed" not in found.stderr and not Path("a.lock.yaml").exists()


def test_unconfirmed_records_are_written_if_asked_for_and_marked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these(monkeypatch)
    held(made_here("q1024"), made_here("q2048", OLD), made_here("q8192", FOREIGN))
    found = run(*LOCK, "--unconfirmed")
    assert "Wrote 2 records as yaml to a.lock.yaml, 1 of them unconfirmed.\n" in found.stdout
    assert found.stderr.startswith("Warning: left out 1 of 3 records (1 measured with another so")
    sound, marked = store.read(Path("a.lock.yaml"))
    assert MARK not in sound.provenance
    assert str(marked.provenance[MARK]).startswith("measured with Triton 3.6.0, and this machine")
    run("import", "a.lock.yaml")  # the mark is of the file
    held(made_here("q2048"))  # as verify writes it
    assert "2 records as yaml to a.lock.yaml.\n" in run(*LOCK).stdout
    assert not any(MARK in record.provenance for record in store.read(Path("a.lock.yaml")))


def test_without_a_compiler_there_is_nothing_to_compare_with(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these(monkeypatch)
    config = kernels.load(CUDA).default(made_here().workload, archs.load("sm90"))
    held(made_here("q1024"), made_here("q2048", kernel=CUDA, config=config))
    for name in ("triton", "cuda"):
        for module in [each for each in sys.modules if each.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)
    nvrtc.installed.cache_clear()
    try:
        error = run(*LOCK, code=3).stderr
        assert "and this machine has no Triton to compare with; 1 measured with NVRTC " in error
        assert "and this machine has no NVRTC to compare with): run 'tunefa verify'" in error
        assert "2 of them unconfirmed" in run(*LOCK, "--unconfirmed").stdout
        counts = json.loads(run("doctor", "--arch", "h200", "--json").stdout)["records"]
        assert (counts["serving"], counts["confirmed"], counts["unconfirmed"]) == (2, 0, 2)
        assert json.loads(run("show", "--json").stdout)["serves"] == ["unconfirmed"] * 2
    finally:
        nvrtc.installed.cache_clear()


def test_mistakes_in_a_lock_file(run: Run) -> None:
    store.default_store().add(predicted())
    error = run("export", "a.lock.yaml", "--frozen", code=1).stderr
    assert "none of 1 record in the store matches and was measured" in error
    error = run("export", "a.yaml", "--unconfirmed", code=2).stderr
    assert "--unconfirmed is for lock files: add --frozen, or leave it out" in error
    error = run("export", "a.json", "--frozen", code=2).stderr
    assert "--frozen writes YAML: name DEST *.yaml" in error


def test_help_says_how_to_use_it(run: Run) -> None:
    text = " ".join(run("export", "--help").stdout.split())
    assert "setting TUNEFA_FROZEN to its path, or by calling tunefa.load(DEST, frozen=True)" in text
