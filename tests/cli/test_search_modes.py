"""tunefa search: its modes, and what it says after Ctrl-C."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching, trials
from tests.support.sample_records import measured, predicted
from tunefa.cli import targets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.spec.trial import MODES, Mode


def test_interrupted_search_prints_the_best_and_ends_with_130(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG), interrupted=True)
    out = run(*SMALL, code=130).stdout
    assert out.startswith("Interrupted: the record is the best config so far.\n")
    assert "Record, predicted" in out


def test_an_interrupted_search_says_how_to_go_on(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG), interrupted=True)
    kernel = "attention_fwd_triton"
    given = f"--budget 2m --kernel {kernel} --strategy tpe --out my.yaml --seed 3 --workers 2"
    out = run("search", "--arch", "h200", "--seqlen", "4096", *given.split(), code=130).stdout
    workload = "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal"
    line = f"tunefa search --arch h200 -w {workload} {given} --resume"
    assert out.endswith(f"Next: continue the search\n  {line}\n")
    again = run(*line.split()[1:], code=130)
    assert line in again.stdout, "what is printed can be run"


def test_the_way_to_go_on_shows_no_password(run: Run, canned: Searching) -> None:
    canned(interrupted=True)
    out = run(*SMALL, "--storage", "mysql://me:secret@host/base", code=130).stdout
    assert "--storage 'mysql://me:***@host/base'" in out and "secret" not in out


def test_an_interrupted_search_that_found_nothing_can_go_on_too(
    run: Run, canned: Searching
) -> None:
    canned(finished=trials()[6:], interrupted=True)
    out = run(*SMALL, code=130).stdout
    assert out.startswith("Interrupted: there is no record.\n")
    assert out.endswith("-w fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal --resume\n")


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_reaches_the_search_and_the_report(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    certificate = {
        "decision": "the default is kept: power brake in 2 races",
        "refused": "power brake in 2 races",
        "gain_over_default": None,
        "noise_floor": 0.01,
        "rounds": 12,
        "racers": 8,
        "device": {"watched": False},
    }
    requests: Any = canned(record=measured(mode=mode, certificate=certificate))
    out = run("search", "--seqlen", "4096", "--mode", mode).stdout
    assert requests[0].mode == mode
    assert f"Record, measured, {mode}" in out
    said_of_mode = {
        "eager": "device in eager mode: the longer of",
        "graph": "replayed in a CUDA graph",
        "step": "device: what it adds to",
    }
    assert said_of_mode[mode] in out
    assert "certified  no: power brake in 2 races" in out
    said = json.loads(run("search", "--seqlen", "4096", "--mode", mode, "--json").stdout)
    assert said["mode"] == said["record"]["mode"] == mode
    run("search", "--seqlen", "4096")
    assert requests[-1].mode == "eager"


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        (None, "no race"),
        ({"refused": "the race was lost: interrupted"}, "the race was lost: interrupted"),
    ],
)
def test_a_measured_record_without_a_race_says_so(
    run: Run, canned: Searching, certificate: dict[str, Any] | None, said: str
) -> None:
    canned(record=measured(certificate=certificate))
    assert re.search(rf"^certified +no: {said} *$", run(*SMALL).stdout, re.MULTILINE)
    canned(record=predicted())
    assert "certified" not in run(*SMALL).stdout


def test_a_mode_of_what_is_not_measured_is_said_to_be_none(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG))
    result = run(*SMALL, "--mode", "graph")
    assert (
        "--mode graph has no effect: nothing is measured for a chip of another machine."
        in result.stderr
    )
    assert json.loads(run(*SMALL, "--json").stdout)["mode"] is None
    assert "--mode" not in run(*SMALL).stderr


def test_decode_is_timed_in_steps(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    requests: Any = canned(record=measured(mode="step"))
    run("search", "--decode", "--batch", "16", "--seqlen-k", "8192")
    run("search", "--decode", "--batch", "16", "--seqlen-k", "8192", "--mode", "eager")
    assert [each.mode for each in requests] == ["step", "eager"]


def test_an_unknown_mode(run: Run, canned: Searching) -> None:
    error = run(*SMALL, "--mode", "foo", code=2).stderr
    assert "Invalid value for '--mode': 'foo' is not one of 'eager', 'graph', 'step'." in error
