"""The words of tunefa doctor on TUNEFA_FROZEN."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support import sample_bundles
from tests.support.made_here import made_here
from tests.support.sample_records import measured
from tunefa.store import results as store
from tunefa.store.record import Record


def test_doctor_says_what_is_served(
    run: Run, lockable: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "none: TUNEFA_FROZEN is not set" in run("doctor", "--arch", "h200").stdout
    assert json.loads(run("doctor", "--arch", "h200", "--json").stdout)["frozen"] is None
    store.write(Path("a.lock.yaml"), [*lockable, measured("q512"), measured("q256")])
    monkeypatch.setenv("TUNEFA_FROZEN", "a.lock.yaml")
    report = json.loads(run("doctor", "--arch", "h200", "--json").stdout)
    refused = report["frozen"].pop("refused")
    assert list(refused) == [str(measured(name).workload) for name in ("q512", "q256")]
    assert report["frozen"].pop("unconfirmed") == []
    assert report["frozen"] == {
        "path": "a.lock.yaml",
        "device": "NVIDIA H200",
        "records": 7,
        "workloads": [str(each.workload) for each in lockable[:2]],
    }
    (problem,) = report["problems"]
    assert "a record for fwd_b1_h32_kv8_q512" in problem and "another source of" in problem
    out = run("doctor", "--arch", "h200").stdout
    assert "TUNEFA_FROZEN is a.lock.yaml" in out
    assert "7 records; 2 workloads served on NVIDIA H200, 2 refused:" in out
    assert f"    {lockable[0].workload}\n" in out


def test_doctor_counts_what_is_served_unconfirmed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(Path("all.yaml"), [made_here("q512"), made_here("q256", {"triton": "3.6.0"})])
    run("export", "a.lock.yaml", "--frozen", "--unconfirmed", "--from", "all.yaml")
    monkeypatch.setenv("TUNEFA_FROZEN", "a.lock.yaml")
    out = run("doctor", "--arch", "h200").stdout
    assert "2 records; 2 workloads served on NVIDIA H200, 1 unconfirmed:" in out
    store.write(Path("a.lock.yaml"), store.read(Path("all.yaml")))
    out = run("doctor", "--arch", "h200").stdout
    assert "2 records; 1 workload served on NVIDIA H200, 1 refused:" in out
    assert "export it with --unconfirmed, or measure" in out


def test_doctor_names_a_broken_lock_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.lock.yaml").write_text("tunefa_schema: 1\nrecords: [\n")
    monkeypatch.setenv("TUNEFA_FROZEN", "a.lock.yaml")
    out = run("doctor", "--arch", "h200").stdout
    assert "Problem: TUNEFA_FROZEN: a.lock.yaml:3: " in out


def test_doctor_says_what_a_bundle_serves(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("-w", "b1_h2_q64_d64_fp32", "--arch", "h200", "--exact")
    run("bundle", "app.tunefa", *words)
    monkeypatch.setenv("TUNEFA_FROZEN", "app.tunefa")
    report = json.loads(run("doctor", "--arch", "h200", "--json").stdout)
    assert report["frozen"]["workloads"] == ["fwd_b1_h2_kv2_q64_k64_d64_fp32_causal"]
    assert report["problems"] == [] and len(report["config_hash"]) == 16
    sample_bundles.write(Path("app.tunefa"))
    report = json.loads(run("doctor", "--arch", "h200", "--json").stdout)
    (problem,) = report["problems"]
    assert "app.tunefa was made with another source of attention_fwd_triton" in problem
    Path("app.tunefa").write_bytes(Path("app.tunefa").read_bytes()[:-1])
    report = json.loads(run("doctor", "--arch", "h200", "--json").stdout)
    assert (
        "TUNEFA_FROZEN: app.tunefa is not a bundle of tunefa, or was cut" in report["problems"][0]
    )
    assert report["config_hash"] is None
