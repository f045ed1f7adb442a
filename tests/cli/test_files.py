"""export, import and show: records in and out, and files that are not what they should be."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.broken_documents import BROKEN, DUPLICATE
from tests.support.sample_records import CONFIG, measured
from tunefa.store import results as store
from tunefa.store.record import Record


def test_last_is_the_newest(run: Run, filled: list[Record]) -> None:
    (record,) = json.loads(run("show", "--last", "--json").stdout)["records"]
    assert record == filled[2].to_dict()


@pytest.mark.parametrize("kind", sorted(set(BROKEN) - {"empty"}))
def test_export_does_not_overwrite_what_it_cannot_read(
    run: Run, filled: list[Record], kind: str
) -> None:
    content, error = BROKEN[kind]
    Path("best.yaml").write_text(content)
    said = run("export", "best.yaml", code=1).stderr
    assert error in said
    assert "not overwritten: move it away first" in said
    assert Path("best.yaml").read_text() == content


def test_export_does_not_overwrite_a_program_of_somebody(run: Run, filled: list[Record]) -> None:
    Path("train.py").write_text("print('mine')\n")
    assert "train.py was not written by tunefa; not" in run("export", "train.py", code=1).stderr
    assert Path("train.py").read_text() == "print('mine')\n"
    run("export", "configs.py")
    run("export", "configs.py")


def test_a_broken_file_in_the_store_is_named_and_hides_nothing(
    run: Run, filled: list[Record], home: Path
) -> None:
    path = home / "results" / "zz.yaml"
    path.write_text(DUPLICATE)
    result = run("show", "--json")
    assert len(json.loads(result.stdout)["records"]) == 3
    assert result.stderr.startswith(f"Warning: results file left out: {path}:3: key 'records'")
    assert result.stderr.count("\n") == 1


def test_store_that_cannot_be_written(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "file"))
    store.write(Path("good.yaml"), [measured()])
    error = run("import", "good.yaml", code=1).stderr
    assert error.startswith("Error: cannot write ")
    assert "TUNEFA_HOME moves the user's store" in error


def test_disk_full_leaves_the_old_file(
    run: Run, filled: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("export", "best.yaml")
    before = Path("best.yaml").read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    error = run("export", "best.yaml", "--last", code=1).stderr
    assert "Error: cannot write best.yaml: No space left on device; nothing there was" in error
    assert Path("best.yaml").read_bytes() == before
    assert os.listdir() == ["best.yaml"]


@pytest.mark.parametrize("command", ["export x.yaml", "search --seqlen 512 --out x.yaml"])
def test_a_deleted_folder_is_said(
    run: Run, filled: list[Record], tmp_path: Path, command: str
) -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    os.rmdir("../gone")
    error = run(*command.split(), code=1).stderr
    assert "cannot write x.yaml: the current folder was deleted: change to another" in error
    run("export", str(tmp_path / "x.yaml"))
    assert len(store.read(tmp_path / "x.yaml")) == 3


@pytest.mark.parametrize("command", ["search --arch sm90 --seqlen 512", "doctor", "verify"])
def test_what_computes_refuses_a_deleted_folder(
    run: Run, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("gone").mkdir()
    monkeypatch.chdir("gone")
    os.rmdir("../gone")
    error = run(*command.split(), code=1).stderr
    assert error.endswith("Error: the current folder was deleted: change to another folder (cd)\n")


def test_results_of_two_searches_are_both_kept(run: Run) -> None:
    other = measured(config={**CONFIG, "BLOCK_M": 64})
    for name, record in {"a.yaml": measured(), "b.yaml": other}.items():
        store.write(Path(name), [record])
        run("import", name)
    assert len(json.loads(run("show", "--json", "--all").stdout)["records"]) == 2
    assert len(json.loads(run("show", "--json").stdout)["records"]) == 1


def test_show_says_what_was_measured_and_what_predicted(run: Run, filled: list[Record]) -> None:
    out = run("show").stdout
    assert "NVIDIA H200 (sm90), measured in graph mode\n" in out
    assert "sm90, predicted (no measurement)\n" in out
    assert "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal" in out
    assert max(map(len, out.splitlines())) <= 80


def test_show_of_an_empty_store_says_how_to_fill_it(run: Run) -> None:
    out = run("show").stdout
    assert "There are no records in the store." in out
    assert "tunefa search --arch sm90 --seqlen 8192" in out
