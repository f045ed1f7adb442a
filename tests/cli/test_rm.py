"""tunefa rm: what is named is removed, after a question, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import measured, predicted
from tunefa.store import results as store
from tunefa.store.record import Record


def own() -> list[Record]:
    return store.Store([store.user_root()]).records()


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["-w", "q8192"], 2),
        (["--seqlen", "4096", "--full"], 2),
        (["--arch", "sm90"], 0),
        (["--device", "h200"], 0),  # predictions are of its arch
        (["--kernel", "attention_fwd_triton"], 0),
        (["--last"], 2),
    ],
)
def test_what_is_named_is_removed(
    run: Run, filled: list[Record], options: list[str], left: int
) -> None:
    shown = run("rm", *options, "--dry-run").stdout
    assert f"Would remove {3 - left} record" in shown and len(own()) == 3
    done = json.loads(run("rm", *options, "--yes", "--json").stdout)
    assert done["removed"] and len(done["records"]) == 3 - left
    assert own() == [record for record in own() if record in filled] and len(own()) == left
    assert not [path for row in done["records"] if (path := Path(row["file"])).exists()]


def test_what_is_no_selection(run: Run, filled: list[Record]) -> None:
    assert "name the records to remove" in run("rm", "--yes", code=2).stderr
    assert "--json asks no question" in run("rm", "--last", "--json", code=2).stderr
    said = run("rm", "-w", "q512", "--yes", code=1).stderr
    assert said.startswith("Error: none of 3 records in ") and "tunefa ships cannot be" in said
    assert len(own()) == 3


def test_what_is_shipped_stays_and_a_file_of_several_keeps_the_others(run: Run) -> None:
    shipped, mine = store.shipped_root() / "all.yaml", store.user_root() / "mine.yaml"
    mine.parent.mkdir(parents=True)
    for path in (shipped, mine):
        store.write(path, [measured(), predicted("q8192")])
    before = shipped.read_bytes()
    run("rm", "-w", "q4096", "--yes")
    assert store.read(mine) == [predicted("q8192")]
    run("rm", "-w", "q8192", "--yes")
    assert not mine.exists() and shipped.read_bytes() == before
