"""export, import and show: records in and out, and files that are not what they should be."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import CONFIG, dated, measured, predicted
from tunefa.store import results as store
from tunefa.store.record import Record

DUPLICATE = "tunefa_schema: 1\nrecords: []\nrecords: []\n"
BROKEN = {
    "duplicate": (DUPLICATE, ":3: key 'records' is already on line 2"),
    "newer": ("tunefa_schema: 3\nrecords: []\n", ":1: was written by a newer tunefa (schema 3,"),
    "not ours": ("colour: red\n", ": not a results document of tunefa"),
    "not yaml": ("tunefa_schema: 1\nrecords: [\n", ":3: "),
    "empty": ("", ": the file is empty"),
    "half a record": ("tunefa_schema: 1\nrecords:\n- kernel: x\n", ":3: record 1: key 'arch' is"),
}


@pytest.fixture
def filled(home: Path) -> list[Record]:
    """Three records in the store."""
    records = [
        measured(),
        predicted("q8192"),
        measured("q4096_full", provenance=dated("2026-01-31T12:00:00+00:00")),
    ]
    for record in records:
        store.default_store().add(record)
    return records


def test_export_and_import_give_back_every_record(
    run: Run, filled: list[Record], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = run("export", "best.yaml").stdout
    assert "Wrote 3 records as yaml to best.yaml." in out
    assert "tunefa import best.yaml" in out
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "another"))
    assert "best.yaml: 3 records, 3 of them new" in run("import", "best.yaml").stdout
    assert "best.yaml: 3 records, 0 of them new" in run("import", "best.yaml").stdout
    known = store.default_store().records()
    assert all(record in known for record in filled)


GLUON = {"WARPGROUPS": 2, "BLOCK_N": 128}


def test_a_format_for_triton_takes_the_best_triton_record(run: Run, filled: list[Record]) -> None:
    best = measured(kernel="attention_fwd_gluon_sm90", config=GLUON, median_us=1.0)
    store.default_store().add(best)
    for name in ("triton", "flex"):
        out = run("export", "-", "--format", name, "-w", "q4096").stdout
        assert "'num_stages': 3" in out or "num_stages=3" in out
        assert "left out" in out and best.summary in out
    said = json.loads(run("export", "-", "--format", "json", "-w", "q4096").stdout)
    assert [record["kernel"] for record in said["records"]] == [best.kernel]


def test_a_format_that_can_write_none_of_the_records_says_so(run: Run, home: Path) -> None:
    store.default_store().add(measured(kernel="attention_fwd_gluon_sm90", config=GLUON))
    error = run("export", "x.flex.py", code=1).stderr
    assert "flex can write none of 1 record that match, as attention_fwd_gluon_sm90 has" in error
    assert not Path("x.flex.py").exists()


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("", 3),
        ("--arch sm90", 3),
        ("--device h200", 2),
        ("-w q4096", 1),
        ("--full", 1),
        ("--seqlen 4k", 2),
        ("--last", 1),
    ],
)
def test_options_narrow_what_is_exported_and_shown(
    run: Run, filled: list[Record], arguments: str, count: int
) -> None:
    exported = run("export", "-", "--format", "json", *arguments.split()).stdout
    assert len(json.loads(exported)["records"]) == count
    shown = run("show", "--json", *arguments.split()).stdout
    assert json.loads(shown)["records"] == json.loads(exported)["records"]


def test_last_is_the_newest(run: Run, filled: list[Record]) -> None:
    (record,) = json.loads(run("show", "--last", "--json").stdout)["records"]
    assert record == filled[2].to_dict()


@pytest.mark.parametrize("name", ["yaml", "json", "triton", "flex", "python"])
def test_standard_output_is_the_export_and_nothing_else(
    run: Run, filled: list[Record], name: str
) -> None:
    to_stdout = run("export", "-", "--format", name).stdout
    run("export", f"file.{name}", "--format", name)
    assert Path(f"file.{name}").read_text() == to_stdout


def test_a_suffix_says_the_format(run: Run, filled: list[Record]) -> None:
    run("export", "configs.flex.py")
    assert "KERNEL_OPTIONS" in Path("configs.flex.py").read_text()


def test_from_converts_a_file_without_the_store(run: Run) -> None:
    store.write(Path("in.yaml"), [measured()])
    run("export", "out.json", "--from", "in.yaml")
    (record,) = json.loads(Path("out.json").read_text())["records"]
    assert record == measured().to_dict()


def test_export_json_says_what_was_written(run: Run, filled: list[Record]) -> None:
    said = json.loads(run("export", "best.yaml", "--json").stdout)
    assert said == {"path": "best.yaml", "format": "yaml", "records": 3}
    assert "--format json" in run("export", "-", "--json", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("best.yaml --format yml2", "unknown format 'yml2': did you mean yaml?"),
        ("best.txt", "the name 'best.txt' does not say which format it is"),
        ("no/where/best.yaml", "the folder no/where does not exist"),
        (".", "the name '.' does not say which format"),
        (". --format yaml", ". is not a regular file: name a file to write"),
        ("best.yaml -w q12345", "none of 3 records in the store matches"),
        ("best.yaml --from missing.yaml", "cannot read missing.yaml: No such file"),
        ("best.yaml --from x.triton.py", "format 'triton' can be written but not read"),
    ],
)
def test_mistakes_in_export(run: Run, filled: list[Record], arguments: str, error: str) -> None:
    result = run("export", *arguments.split(), code=1)
    assert error in result.stderr
    assert not Path("best.yaml").exists()


@pytest.mark.parametrize("kind", BROKEN)
def test_import_of_a_broken_file_adds_nothing(run: Run, home: Path, kind: str) -> None:
    content, error = BROKEN[kind]
    store.write(Path("good.yaml"), [measured()])
    Path("bad.yaml").write_text(content)
    said = run("import", "good.yaml", "bad.yaml", code=1).stderr
    assert said.startswith("Error: bad.yaml:")
    assert error in said
    assert not (home / "results").exists()


def test_import_of_a_truncated_file_names_it(run: Run) -> None:
    store.write(Path("whole.yaml"), [measured()])
    whole = Path("whole.yaml").read_text()
    Path("torn.yaml").write_text(whole[: whole.index("  objective")])
    assert (
        "Error: torn.yaml:3: record 1: key 'objective'" in run("import", "torn.yaml", code=1).stderr
    )


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
    assert "None of 0 records in the store matches." in out
    assert "tunefa search --arch sm90 --seqlen 8192" in out
