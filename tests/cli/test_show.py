"""tunefa show: --kernel, and the failures. Records are in test_files.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.own_kernels import OwnKernels
from tests.support.sample_journals import written
from tests.support.sample_records import CONFIG, measured, predicted
from tests.support.tree import TREE
from tunefa.compile import provenance
from tunefa.spec import kernel as kernels
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload
from tunefa.store import results as store

LONG = "ptxas fatal: " + "registers and more registers " * 30
OURS = "attention_fwd_triton"


@pytest.fixture
def journals(home: Path) -> list[Path]:
    """Three: sm90, sm90 with another kernel and workload, sm80; the last is the newest."""
    return [
        written(
            "20260101T101112",
            Trial(CONFIG, "ok", predicted_us=1.0),
            Trial({**CONFIG, "BLOCK_M": 256}, "compile_failed", LONG),
            Trial({**CONFIG, "BLOCK_N": 256}, "compile_failed", LONG),
            Trial({**CONFIG, "maxnreg": 96}, "timeout", "compiling took over 60 s"),
            kernel=OURS,
        ),
        written(
            "20260102T000000",
            Trial({"A": 1}, "wrong", "logsumexp is off by 0.5\n(at most 1e-3)"),
            kernel="gone_by_now",
            workload=str(Workload.parse("q1024_h4_d64_full")),
        ),
        written(
            "20260103T000000",
            Trial(CONFIG, "crashed"),
            kernel=OURS,
            arch="sm80",
            device="NVIDIA A100 SXM4 40GB",
        ),
    ]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_failures(
    run: Run, journals: list[Path], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = run("show", "--failures").stdout
    lines = out.splitlines()
    assert lines[1].split() == ["2", "compile_failed", OURS]
    words = " ".join(out.split())
    for said in (
        "NVIDIA H200 (sm90), 2026-01-01 10:11:12 UTC",
        "logsumexp is off by 0.5 (at most 1e-3)",
        "crashed attention_fwd_triton BLOCK_M=128",
        "no reason was given",
        "...",
        "timeout",
        "tunefa explain --arch sm80 -w fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal --kernel",
    ):
        assert said in words
    places = [out.index(str(path)) for path in reversed(journals)]
    assert places == sorted(places)
    assert LONG not in words
    own = [line for line in lines if not line.startswith(("/", "  tunefa"))]
    assert max(map(len, own)) <= int(columns)


def test_json_has_everything(run: Run, journals: list[Path]) -> None:
    said = json.loads(run("show", "--failures", "--json").stdout)
    assert said["counts"][0] == {
        "kernel": OURS, "outcome": "compile_failed", "count": 2, "reason": LONG
    }  # fmt: skip
    assert sum(row["count"] for row in said["counts"]) == len(said["failures"]) == 5
    assert said["failures"][0]["arch"] == "sm80"
    assert said["failures"][2]["reason"] == LONG
    assert said["failures"][2]["journal"] == str(journals[0])


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("--arch sm90", 4),
        ("--device h200", 4),
        ("--arch sm80", 1),
        ("-w q4096", 4),
        ("--full", 1),
        ("--kernel gone_by_now", 1),
        (f"--kernel gone_by_now --kernel {OURS}", 5),
        ("--last", 1),
        ("--last --arch sm90 --causal", 3),
        ("--seqlen 1234", 0),
        ("--seqlen 1234 --last", 0),
    ],
)
def test_options_narrow_the_failures(
    run: Run, journals: list[Path], arguments: str, count: int
) -> None:
    said = run("show", "--failures", "--json", *arguments.split())
    assert len(json.loads(said.stdout)["failures"]) == count


def test_a_broken_journal_is_named_and_hides_nothing(run: Run, journals: list[Path]) -> None:
    journals[1].write_text("nonsense\nmore\n")
    result = run("show", "--failures", "--json")
    assert len(json.loads(result.stdout)["failures"]) == 4
    assert result.stderr.startswith(f"Warning: journal left out: {journals[1]}:1: this line")
    assert result.stderr.count("\n") == 1


def test_no_failures(run: Run, home: Path) -> None:
    assert run("show", "--failures").stdout == "None of 0 failures in the journals matches.\n"
    said = json.loads(run("show", "--failures", "--json").stdout)
    assert said == {"counts": [], "failures": []}


def test_mistakes(run: Run, journals: list[Path]) -> None:
    error = run("show", "--failures", "--kernel", "gone_by_non", code=1).stderr
    assert "unknown kernel 'gone_by_non': did you mean gone_by_now?" in error
    assert "unknown kernel 'gone_by_now'" in run("show", "--kernel", "gone_by_now", code=1).stderr
    assert "--all is for records" in run("show", "--failures", "--all", code=2).stderr


def test_kernel_narrows_the_records(run: Run, home: Path) -> None:
    for record in (measured(), measured("q8192", kernel="another")):
        store.default_store().add(record)
    (record,) = json.loads(run("show", "--kernel", "another", "--json").stdout)["records"]
    assert record["kernel"] == "another"
    assert len(json.loads(run("show", "--json").stdout)["records"]) == 2


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


def test_a_kernel_that_is_broken_hides_nothing(run: Run, own_kernels: OwnKernels) -> None:
    own_kernels.add_attention("sound")
    own_kernels.add_broken("broken")
    for name, workload in (("broken", "q1024"), ("sound", "q2048")):
        store.default_store().add(measured(workload, kernel=name))
    said = json.loads(run("show", "--json").stdout)
    assert [record["kernel"] for record in said["records"]] == ["broken", "sound"]
    (broken,), sound = said["drift"]
    assert broken.startswith("broken cannot be loaded: ") and "broken.yaml:" in broken
    assert "broken" not in " ".join(sound)
    doctor = json.loads(run("doctor", "--arch", "sm90", "--json").stdout)
    assert doctor["records"]["drifted"] == 2
    (problem,) = doctor["problems"]
    assert "broken.yaml:" in problem and doctor["versions"]["ptxas"]


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


def test_show_loads_nothing_heavy(home: Path) -> None:
    store.default_store().add(measured())
    code = "from tunefa.cli import main; main(['show'], standalone_mode=False); import sys; "
    code += "print(sorted({'torch', 'triton', 'optuna', 'numpy'} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "since then" in done.stdout and done.stdout.splitlines()[-1] == "[]"
