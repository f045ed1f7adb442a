"""tunefa prune: what no lookup can choose is removed, with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import dated, measured, predicted
from tunefa.compile import provenance
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.store import results as store
from tunefa.store.record import Record

KERNEL = kernels.load("attention_fwd_triton")
CONFIG = KERNEL.default(measured().workload, archs.load("sm90"))


def today(record: Record, date: str = "2026-01-01T00:00:00+00:00", **changes: Any) -> Record:
    """The record as it would be made here at that date."""
    made = {**provenance.of(KERNEL), "date": date}
    return replace(record, **{"provenance": made, "config": CONFIG, **changes})


@pytest.fixture
def kept() -> list[Record]:
    """Records that may serve."""
    return [
        today(measured()),
        today(measured(mode="eager")),
        today(predicted("q8192")),
        today(measured("q1024", device="NVIDIA H100 80GB HBM3")),
        today(measured("q512", kernel="flex_attention_fwd.0123456789ab")),
    ]


@pytest.fixture
def unused() -> dict[str, Record]:
    """Records that cannot, by the reason that is given."""
    older = {"median_us": 300.0, "config": {**CONFIG, "num_stages": 2}}
    refused = {**CONFIG, "BLOCK_M": 256, "BLOCK_N": 256, "num_stages": 5}
    return {
        "a newer record supersedes it": today(measured(), "2025-01-01T00:00:00+00:00", **older),
        "it was predicted, and NVIDIA H200 was measured": today(predicted()),
        "it was measured with another source of attention_fwd_triton": measured("q2048"),
        "it was made with a config that the space refuses": today(
            measured("q2048"), "2026-02-01T00:00:00+00:00", config=refused
        ),
        "it was made for what is not known here: unknown kernel 'gone'": measured(
            kernel="gone", provenance=dated("2026-01-01T00:00:00+00:00")
        ),
    }


def test_what_cannot_serve_is_removed(
    run: Run, kept: list[Record], unused: dict[str, Record]
) -> None:
    home = store.default_store()
    for record in [*kept, *unused.values()]:
        home.add(record)
    twice = store.user_root() / "zz" / "copy.yaml"
    twice.parent.mkdir(parents=True)
    store.write(twice, kept[:1])
    shown = json.loads(run("prune", "--dry-run", "--json").stdout)
    assert not shown["removed"] and len(home.own()) == 11
    by_why = {row["why"]: row for row in shown["records"]}
    assert len(by_why) == len(unused) + 1
    for why, record in unused.items():
        (row,) = (row for said, row in by_why.items() if said.startswith(why))
        assert Record.from_dict(row["record"]) == record
    (copy,) = (row for row in shown["records"] if Path(row["file"]) == twice)
    assert copy["why"].startswith("a copy of the record in ")
    assert "Removed 6 records." in run("prune", "--yes").stdout
    left = [record for _, record in home.own()]
    assert len(left) == len(kept) and all(record in left for record in kept)
    assert "Nothing to prune" in run("prune").stdout
    nothing = json.loads(run("prune", "--json").stdout)
    assert nothing == {"removed": False, "records": []}


def test_what_is_shipped_stays(run: Run, unused: dict[str, Record]) -> None:
    path = store.shipped_root() / "all.yaml"
    store.write(path, list(unused.values()))
    before = path.read_bytes()
    assert "Nothing to prune" in run("prune", "--yes").stdout
    assert path.read_bytes() == before
