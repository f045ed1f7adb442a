"""What tunefa doctor says of TUNEFA_FROZEN."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import CONFIG, measured, predicted
from tunefa.compile import provenance
from tunefa.spec import kernel
from tunefa.store import results as store
from tunefa.store.record import Record


@pytest.fixture
def filled() -> list[Record]:
    """Five records in the store; the first two are the best measured of their workload."""
    made = provenance.of(kernel.load("attention_fwd_triton"))
    config = {**CONFIG, "maxnreg": 128, "L2_SECTION_HEADS": 1}
    del config["ORDER"]
    known = [
        measured("q8192"),
        measured("q4096", median_us=100.0),
        measured("q4096", config={**config, "BLOCK_N": 128}),
        predicted(),
        predicted("q1024"),
    ]
    known = [replace(each, provenance=made) for each in known]
    known = [each if "ORDER" not in each.config else replace(each, config=config) for each in known]
    for each in known:
        store.default_store().add(each)
    return known


def test_doctor_says_what_is_served(
    run: Run, filled: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "none: TUNEFA_FROZEN is not set" in run("doctor", "--arch", "h200").stdout
    assert json.loads(run("doctor", "--arch", "h200", "--json").stdout)["frozen"] is None
    store.write(Path("a.lock.yaml"), [*filled, measured("q512"), measured("q256")])
    monkeypatch.setenv("TUNEFA_FROZEN", "a.lock.yaml")
    report = json.loads(run("doctor", "--arch", "h200", "--json").stdout)
    refused = report["frozen"].pop("refused")
    assert list(refused) == [str(measured(name).workload) for name in ("q512", "q256")]
    assert report["frozen"] == {
        "path": "a.lock.yaml",
        "device": "NVIDIA H200",
        "records": 7,
        "workloads": [str(each.workload) for each in filled[:2]],
    }
    (problem,) = report["problems"]
    assert "a record for fwd_b1_h32_kv8_q512" in problem and "source_hash 0123abcd" in problem
    out = run("doctor", "--arch", "h200").stdout
    assert "TUNEFA_FROZEN is a.lock.yaml" in out
    assert "7 records; 2 workloads served on NVIDIA H200, 2 refused:" in out
    assert f"    {filled[0].workload}\n" in out


def test_doctor_names_a_broken_lock_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.lock.yaml").write_text("tunefa_schema: 1\nrecords: [\n")
    monkeypatch.setenv("TUNEFA_FROZEN", "a.lock.yaml")
    out = run("doctor", "--arch", "h200").stdout
    assert "Problem: TUNEFA_FROZEN: a.lock.yaml:3: " in out
