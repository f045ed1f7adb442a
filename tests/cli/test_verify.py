"""tunefa verify: what it prints, stores and exits with; the races are canned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.made_here import made_here
from tests.support.sample_records import CONFIG, dated, measured, predicted
from tunefa.cli import targets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.search import verify
from tunefa.search.budget import Budget
from tunefa.search.verify import Finding, Verified
from tunefa.store import results as store
from tunefa.store.record import Record

OTHER = {**CONFIG, "BLOCK_N": 128}
Canned = Callable[..., list[Record]]


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> Canned:
    """A GPU whose races end as told; returns the records that were raced."""
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])

    def prepare(outcome: Finding, **parts: Any) -> list[Record]:
        raced: list[Record] = []

        def race(records: list[Record], _: Any, budget: Budget, *__: Any) -> Iterator[Verified]:
            for record in records[: budget.trials]:
                raced.append(record)
                yield Verified(record, outcome, "because", ["triton 3.6.0 -> 3.7.1"], **parts)

        monkeypatch.setattr(verify, "verify", race)
        return raced

    return prepare


def test_one_that_still_wins_is_stored_anew(run: Run, canned: Canned) -> None:
    store.default_store().add(measured(mode="eager"))
    anew = measured(mode="eager", provenance=dated("2026-03-01T00:00:00Z"))
    raced = canned("kept", instead=anew)
    out = run("verify").stdout
    assert raced == [measured(mode="eager")]
    assert "kept      fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal (eager)\n" in out
    assert "triton 3.6.0 -> 3.7.1" in out and "now:" not in out
    assert "          confirmed with these compilers\n" in out
    assert store.default_store().best() == [anew]


def test_one_that_lost_gives_way(run: Run, canned: Canned) -> None:
    store.default_store().add(measured())
    better = measured(config=OTHER, provenance=dated("2026-03-01T00:00:00Z"))
    canned("swapped", instead=better)
    out = run("verify", code=3).stdout
    assert "swapped " in out and "now: BLOCK_M=128 BLOCK_N=128" in " ".join(out.split())
    assert store.default_store().best() == [better]


def test_a_disturbed_race_changes_nothing(run: Run, canned: Canned) -> None:
    store.default_store().add(measured())
    canned("undecided")
    assert "undecided fwd_b1" in run("verify").stdout
    said = json.loads(run("verify", "--json").stdout)["verified"]
    assert [(each["outcome"], each["mode"], each["instead"]) for each in said] == [
        ("undecided", "graph", None)
    ]
    assert store.default_store().best() == [measured()]


def test_what_the_budget_leaves_out_is_listed(run: Run, canned: Canned) -> None:
    for workload in ("q1024", "q2048", "q4096"):
        store.default_store().add(measured(workload))
    raced = canned("kept")
    out = run("verify", "--budget", "1").stdout
    assert len(raced) == 1 and "1 of 3 records verified in 0 s: 1 kept" in out
    assert "the budget left out 2, whose records stay as they are:" in out
    said = json.loads(run("verify", "--budget", "1", "--json").stdout)
    names = {each["workload"] for each in said["left_out"]}
    assert len(names) == 2 and str(raced[0].workload) not in names


def test_a_wrong_budget_is_refused(run: Run, canned: Canned) -> None:
    canned("kept")
    assert "budget 'soon' is neither a time" in run("verify", "--budget", "soon", code=1).stderr


def test_only_what_was_measured_on_this_device_races(run: Run, canned: Canned) -> None:
    for record in (predicted("q1024"), replace(measured("q2048"), device="NVIDIA H100 PCIe")):
        store.default_store().add(record)
    raced = canned("kept")
    error = run("verify", code=1).stderr
    assert (
        "none of 2 records was measured on NVIDIA H200: run tunefa search first" in error
        and raced == []
    )


def test_without_a_gpu(run: Run) -> None:
    assert "this machine has no GPU" in run("verify", code=1).stderr


def test_a_record_that_was_verified_is_confirmed_everywhere(run: Run, canned: Canned) -> None:
    store.default_store().add(made_here("q1000", {"triton": "3.6.0"}))

    def said(state: str) -> bool:
        doctor = json.loads(run("doctor", "--json").stdout)["records"]
        shown = json.loads(run("show", "-w", "q1000", "--json").stdout)["serves"]
        locked = run("export", "a.lock.yaml", "--frozen", "-w", "q1000", code=3 * (state[0] == "u"))
        chosen = run("explain", "--arch", "h200", "-w", "q1000", "--no-compile").stdout
        return (
            shown == [state]
            and doctor[state] >= 1
            and ("Wrote 1 record" in locked.stdout) == (state == "confirmed")
            and "exact: measured on NVIDIA H200" in " ".join(chosen.split())
            and ("unconfirmed" in chosen) == (state == "unconfirmed")
        )

    assert said("unconfirmed")
    canned("kept", instead=made_here("q1000"))
    run("verify")
    assert said("confirmed")
