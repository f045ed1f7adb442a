"""tunefa export: formats, what is chosen, and where it goes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import CONFIG, measured, predicted
from tunefa.store import results as store
from tunefa.store.record import Record

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


def test_only_what_a_format_can_write_is_counted(run: Run, filled: list[Record]) -> None:
    store.default_store().add(
        measured(kernel="attention_fwd_gluon_sm90", config=GLUON, median_us=1.0)
    )
    out = run("export", "x.triton.py", "-w", "q4096").stdout
    assert "Wrote 1 record as triton to x.triton.py; 1 cannot be written so, comments" in out
    said = json.loads(run("export", "x.triton.py", "-w", "q4096", "--json").stdout)
    assert said["records"] == 1


def test_a_format_that_can_write_none_of_the_records_says_so(run: Run, home: Path) -> None:
    store.default_store().add(measured(kernel="attention_fwd_gluon_sm90", config=GLUON))
    error = run("export", "x.flex.py", code=1).stderr
    assert "flex can write none of 1 record that match, as it does not hold the parameters" in error
    assert "of attention_fwd_gluon_sm90: write yaml, json or python" in error
    assert not Path("x.flex.py").exists()


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("", 3),
        ("--arch sm90", 3),
        ("--device h200", 3),
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


@pytest.mark.parametrize("name", ["triton", "flex"])
def test_a_format_for_kernels_of_others_never_mixes_chips(
    run: Run, filled: list[Record], name: str
) -> None:
    store.default_store().add(predicted(arch="sm80", config={**CONFIG, "BLOCK_M": 32}))
    error = run("export", "-", "--format", name, code=1).stderr
    assert "there are records of sm80, sm90: name one of them with --arch" in error
    ampere = run("export", "-", "--format", name, "--arch", "sm80").stdout
    hopper = run("export", "-", "--format", name, "--arch", "sm90").stdout
    assert "'BLOCK_M': 32" in ampere and "sm90" not in ampere
    assert "'BLOCK_M': 32" not in hopper and "sm80" not in hopper
    assert not {"USE_TMA", "ORDER", "PACK_GQA"} & set(re.findall(r"\w+", ampere + hopper))


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
        ("best.py --format yaml", "best.py is the name of a file in the format python, not yaml"),
        ("best.yaml --format triton", "in the format yaml, not triton: end it in .triton.py"),
        ("best.flex.py --format triton", "in the format flex, not triton"),
        ("best.py --format yaml --frozen", "in the format python, not yaml"),
        ("best.yaml --from x.triton.py", "format 'triton' can be written but not read"),
    ],
)
def test_mistakes_in_export(run: Run, filled: list[Record], arguments: str, error: str) -> None:
    result = run("export", *arguments.split(), code=1)
    assert error in result.stderr
    assert not Path("best.yaml").exists()
