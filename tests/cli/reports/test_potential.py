"""tunefa/cli/reports/potential.py: a result against the default, and against the chip."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, Searching
from tests.support.sample_records import measured, predicted
from tunefa.cli import targets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.costmodel.roofline import HBM, TENSOR
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

SEARCH = ("search", "--arch", "sm90", "--kernel", "attention_fwd_triton")
RESOURCES = Resources(98304, 168, 0, 0)


def found(workload: str, us: float, of_default: float) -> dict[str, Any]:
    """A record and the default's trial."""
    config = kernels.load("attention_fwd_triton").default(
        Workload.parse(workload), Target.named("sm90").arch
    )
    best = replace(predicted(workload, config=CONFIG), median_us=us, resources=RESOURCES)
    trials = [
        Trial(each, "ok", resources=RESOURCES, predicted_us=time_us)
        for each, time_us in ((CONFIG, us), (config, of_default))
    ]
    return {"record": best, "finished": trials}


def test_speed_up_and_roofline_are_said(run: Run, canned: Searching) -> None:
    """4,096 causal keys take an H100's tensor cores 138.9 us."""
    canned(**found("q4096", 200.0, 300.0))
    out = " ".join(run(*SEARCH, "--seqlen", "4096").stdout.split())
    expected = "speed-up 1.50x expected over the default of attention_fwd_triton (300.0 us), "
    assert expected + "beyond the model's error of " in out
    assert "roofline 69% of what the chip can do: 138.9 us, bounded by its tensor cores" in out
    assert "decode" not in out
    said = json.loads(run(*SEARCH, "--seqlen", "4096", "--json").stdout)
    assert said["speedup_over_default"] == 1.5 and said["decode"] is None
    assert said["roofline"]["bound_by"] == TENSOR
    assert said["roofline"]["fraction"] == pytest.approx(0.695, abs=1e-3)


def test_measured_results_say_it_too(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)])
    made = found("q4096", 200.0, 250.0)
    made["record"] = measured("q4096", config=CONFIG, median_us=200.0)
    canned(**made)
    out = " ".join(run("search", "--seqlen", "4096", *SEARCH[3:]).stdout.split())
    assert "speed-up 1.25x over the default" in out and "roofline 69% of" in out


def test_a_gain_that_may_be_the_model_s_error_says_so(run: Run, canned: Searching) -> None:
    canned(**found("q4096", 200.0, 202.0))
    out = " ".join(run(*SEARCH, "--seqlen", "4096").stdout.split())
    assert "speed-up 1.01x expected over the default" in out and "within the model's error" in out


def test_a_default_that_wins_is_no_speed_up(run: Run, canned: Searching) -> None:
    made = found("q4096", 200.0, 250.0)
    made["record"] = replace(made["record"], config=dict(made["finished"][1].config))
    canned(**made)
    assert "none: the default is recommended" in run(*SEARCH, "--seqlen", "4096").stdout


@pytest.mark.parametrize(
    ("batch", "bound", "said"),
    [
        ("1", "occupancy", "bounded by occupancy: one CTA reads all keys of its sequence (no "
         "split-KV), so there are 32 CTAs, and 132 SMs can hold 132: 24% of the SMs work; "
         "reading K and V, 32.0 MiB, takes HBM 10.0 us. Calls run as decode_b16_h32_kv8_q1_"),
        ("16", HBM, "bounded by HBM bandwidth: reading K and V, 512.0 MiB, takes HBM 160.3 us; "
         "there are 512 CTAs, and 132 SMs can hold 132"),
    ],
)  # fmt: skip
def test_a_decode_says_what_bounds_it(
    run: Run, canned: Searching, batch: str, bound: str, said: str
) -> None:
    canned(**found(f"b{batch}_h32_kv8_q1_k8k", 60.0, 80.0))
    asked = (*SEARCH, "--batch", batch, "--seqlen", "1", "--seqlen-k", "8k")
    assert said in " ".join(run(*asked).stdout.split())
    assert json.loads(run(*asked, "--json").stdout)["decode"]["bound_by"] == bound


@pytest.mark.parametrize(
    "sizes",
    ["--seqlen 1000000000000", "--seqlen 8192 --batch 1000000000", "--seqlen 64k --batch 65"],
)
def test_what_no_memory_holds_is_refused_in_one_sentence(run: Run, sizes: str) -> None:
    said = run(*SEARCH, *sizes.split(), code=1).stderr
    assert said.count("\n") == 1 and "GiB for Q, K, V, the output and the logsumexp" in said
    assert "NVIDIA H100 80GB HBM3 has 80.0 GiB" in said
