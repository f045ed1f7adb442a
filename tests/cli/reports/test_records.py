"""tunefa/cli/reports/records.py: records by chip, and what has changed since."""

from __future__ import annotations

import json
import re
from importlib import metadata
from typing import Any

from tests.cli.conftest import Run
from tests.support.sample_records import measured, predicted
from tunefa.compile import provenance
from tunefa.spec import kernel as kernels
from tunefa.store import results as store

OURS = "attention_fwd_triton"


def made(**changes: Any) -> dict[str, Any]:
    """The provenance of a record that was made with what is here, but for some changes."""
    return {**provenance.of(kernels.load(OURS)), **changes}


def test_what_changed_since_a_record_was_made_stands_under_it(run: Run) -> None:
    home = store.default_store()
    for record in (
        measured("q1024", provenance=made()),
        measured("q2048", provenance=made(triton="3.6.0")),
        measured("q8192", provenance=made(source_hash="0123"), kernel=OURS),
        measured("q512", kernel="gone_by_now"),
    ):
        home.add(record)
    result = run("show")
    now = metadata.version("triton")
    assert f"since then: triton 3.6.0 -> {now}\n" in re.sub(r" +\n", "\n", result.stdout)
    assert f"since then: the source of {OURS} changed" in " ".join(result.stdout.split())
    assert "since then: there is no kernel gone_by_now any more" in result.stdout
    assert result.stdout.count("since then") == 3
    assert result.stdout.endswith(
        "Next: renew 3 records from before an upgrade, on NVIDIA H200\n  tunefa verify\n"
    )
    said = json.loads(run("show", "--json").stdout)
    drift = {
        r["workload"].split("_")[4]: d for r, d in zip(said["records"], said["drift"], strict=True)
    }
    assert drift["q1024"] == [] and drift["q2048"] == [f"triton 3.6.0 -> {now}"]


def test_predicted_records_from_before_an_upgrade_are_searched_again(run: Run) -> None:
    store.default_store().add(predicted("q2048", provenance=made(triton="3.6.0")))
    assert run("show").stdout.endswith(
        "Next: renew 1 record from before an upgrade by a new search, for example\n"
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
    store.default_store().add(measured(provenance=made(), certificate=refused, mode="eager"))
    out = run("show").stdout
    assert "NVIDIA H200 (sm90), measured in eager mode\n" in out
    assert "not certified: power brake in 2 races" in out and "since then" not in out
