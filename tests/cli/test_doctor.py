"""tunefa doctor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.made_here import made_here
from tests.support.sample_records import measured
from tunefa._version import __version__
from tunefa.cli import doctor, targets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.store import results as store


def test_everything_is_there(run: Run, home: Path) -> None:
    report = json.loads(run("doctor", "--arch", "h200", "--json").stdout)
    assert report["versions"]["tunefa"] == __version__
    assert {"python", "torch", "triton", "ptxas", "cuda", "driver", "optuna"} <= set(
        report["versions"]
    )
    assert report["target"]["features"] == {"tma": True, "wgmma": True, "fp8": True}
    assert report["places"]["results"]["path"] == str(home / "results")
    assert report["places"]["journals"]["writable"]
    assert report["devices"] == []


def test_a_home_where_no_search_can_write_is_a_problem(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no search can run" not in run("doctor").stdout
    monkeypatch.setattr(doctor, "_is_writable", lambda path: path.name != "results")
    said = run("doctor").stdout
    results = f"no search can run, as the folder of results, {home / 'results'}, cannot be written"
    assert f"Problem: {results}" in said and "folder of journals" not in said


def test_records_that_serve_the_device_are_counted(run: Run, home: Path) -> None:
    for record in (
        made_here(),
        made_here("q2048", versions={"triton": "3.6.0"}),
        made_here(device="NVIDIA H100 PCIe"),
        made_here(device=None, objective="predicted", mode=None),
        made_here(arch="sm80", device="A100"),
        measured("q1024"),
    ):
        store.default_store().add(record)
    assert "4 of 6 can serve NVIDIA H200:" in run("doctor", "--arch", "h200").stdout
    counts = json.loads(run("doctor", "--arch", "h200", "--json").stdout)["records"]
    first, second = counts.pop("not_confirmed_because")
    assert first.startswith("1 measured with Triton 3.6.0, and this machine has ")
    assert second.startswith("1 measured with another source of attention_fwd_triton (0123abcd, ")
    assert counts == {
        "total": 6,
        "serving": 4,
        "measured_on_it": 2,
        "confirmed": 1,
        "unconfirmed": 1,
        "measured_on_others": 1,
        "predicted": 1,
        "refused": 1,
    }


def test_what_to_do_about_unconfirmed_records(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store.default_store().add(made_here("q1024"))
    assert "confirm" not in run("doctor", "--arch", "h200").stdout.partition("unconfirmed  0")[2]
    store.default_store().add(made_here("q2048", versions={"triton": "3.6.0"}))
    out = run("doctor", "--arch", "h200").stdout
    assert "measured on it, unconfirmed  1\n" in out
    assert "The runtime uses an unconfirmed record if its config compiles." in out
    assert out.endswith("\n  tunefa search --arch h200 --seqlen 8192\n"), "no H200 to verify it on"
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    out = run("doctor", "--arch", "h200").stdout
    assert out.endswith("Next: confirm 1 record, on NVIDIA H200\n  tunefa verify\n")
    store.default_store().add(made_here("q2048"))  # as verify writes it
    out = run("doctor", "--arch", "h200").stdout
    assert "measured on it, unconfirmed  0\n" in out and "tunefa verify" not in out


def test_broken_files_are_named(run: Run, home: Path) -> None:
    path = home / "results" / "bad.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("records: [")
    result = run("doctor", "--arch", "sm90")
    assert f"Problem: results file left out: {path}:2: " in result.stdout
    assert result.stderr == ""


def test_no_compiler_is_a_problem_not_a_crash(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    (problem,) = json.loads(run("doctor", "--arch", "sm90", "--json").stdout)["problems"]
    assert "no compiler found: Triton cannot be imported" in problem
