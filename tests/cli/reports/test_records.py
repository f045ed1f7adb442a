"""tunefa/cli/reports/records.py: records by chip, and what has changed since."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from tests.cli.conftest import Run
from tests.support.made_here import OURS, made_here
from tests.support.sample_records import measured, predicted
from tunefa.cli import targets
from tunefa.compile import provenance
from tunefa.compile.launch.driver import SeenDevice
from tunefa.store import results as store


def test_what_changed_since_a_record_was_made_stands_under_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    home = store.default_store()
    for record in (
        made_here("q1024"),
        made_here("q2048", versions={"triton": "3.6.0"}),
        made_here("q8192", versions={"source_hash": "0123"}),
        measured("q512", kernel="gone_by_now"),
    ):
        home.add(record)
    result = run("show")
    now = metadata.version("triton")
    text = " ".join(result.stdout.split())
    assert f"unconfirmed: measured with Triton 3.6.0, and this machine has {now} " in text
    assert f"does not serve: measured with another source of {OURS} (0123, and this" in text
    assert "does not serve: made for what is not known here: unknown kernel 'gone_by_now'" in text
    assert text.count("unconfirmed: ") == 1 and text.count("does not serve: ") == 2
    assert result.stdout.endswith("Next: confirm 3 records, on NVIDIA H200\n  tunefa verify\n")
    said = json.loads(run("show", "--json").stdout)
    both = zip(said["drift"], said["serves"], strict=True)
    found = {r["workload"].split("_")[4]: d for r, d in zip(said["records"], both, strict=True)}
    assert found["q1024"] == ([], "confirmed")
    assert found["q2048"] == ([f"triton 3.6.0 -> {now}"], "unconfirmed")
    assert found["q8192"][1] == found["q512"][1] == "refused"


def test_another_driver_is_said_and_the_record_stays_confirmed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    store.default_store().add(made_here(versions={"driver": "1.0"}))
    monkeypatch.setattr(provenance, "_driver", lambda: "2.0")
    out = run("show").stdout
    assert "since then: driver 1.0 -> 2.0" in out and "Next: confirm 1 record, on NVIDIA" in out
    assert json.loads(run("show", "--json").stdout)["serves"] == ["confirmed"]


def test_predicted_records_from_before_an_upgrade_are_searched_again(run: Run) -> None:
    store.default_store().add(predicted("q2048", provenance=made_here().provenance))
    assert run("show").stdout.endswith(
        "Next: confirm 1 record by a new search, for example\n"
        "  tunefa search --arch sm90 -w fwd_b1_h32_kv8_q2048_k2048_d128_bf16_causal\n"
    )


def test_a_measured_record_that_did_not_race_says_so(run: Run) -> None:
    store.default_store().add(measured(certificate=None))
    assert "not certified: no race" in run("show").stdout
    store.default_store().add(measured(certificate={"decision": "the fastest of 9"}))
    store.default_store().add(predicted(certificate=None))
    assert "not certified" not in run("show").stdout


def test_a_record_that_is_not_certified_says_so(run: Run) -> None:
    refused = {"refused": "power brake in 2 races"}
    store.default_store().add(made_here(certificate=refused, mode="eager"))
    out = run("show").stdout
    assert "NVIDIA H200 (sm90), measured in eager mode\n" in out
    assert "not certified: power brake in 2 races" in out and "since then" not in out
