"""tunefa doctor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import measured, predicted
from tunefa._version import __version__
from tunefa.compile import provenance
from tunefa.spec import kernel as kernels
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


def test_records_that_serve_the_device_are_counted(run: Run, home: Path) -> None:
    others = [
        measured(device="NVIDIA H100 PCIe"),
        predicted(),
        measured(arch="sm80", device="A100"),
    ]
    for record in [measured(), *others]:
        store.default_store().add(record)
    out = run("doctor", "--arch", "h200").stdout
    assert "3 of 4 can serve NVIDIA H200:" in out
    counts = json.loads(run("doctor", "--arch", "h200", "--json").stdout)["records"]
    assert counts == {
        "total": 4,
        "serving": 3,
        "measured_on_it": 1,
        "measured_on_others": 1,
        "predicted": 1,
        "drifted": 4,
    }


def test_records_from_before_an_upgrade_are_counted(run: Run, home: Path) -> None:
    now = provenance.of(kernels.load("attention_fwd_triton"))
    store.default_store().add(measured("q1024", provenance=now))
    assert "made with other" not in run("doctor", "--arch", "h200").stdout
    store.default_store().add(measured("q2048", provenance={**now, "triton": "3.6.0"}))
    out = run("doctor", "--arch", "h200").stdout
    assert "of the best, 1 record made with other compilers or kernel sources" in out
    assert out.endswith("from before an upgrade, on NVIDIA H200\n  tunefa verify\n")


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
