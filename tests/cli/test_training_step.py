"""tunefa search --forward-backward: both passes of a training step, within one budget."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching, trials
from tests.support.fake_objective import Fake
from tests.support.sample_records import predicted
from tunefa.cli import training_step
from tunefa.spec.workload import Workload
from tunefa.store import results as store

FORWARD = "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal"
BACKWARD = FORWARD.replace("fwd", "bwd")
STEP = (*SMALL, "--forward-backward")


def test_both_passes_are_searched_within_one_budget(run: Run, canned: Searching) -> None:
    requests: Any = canned(record=predicted(config=CONFIG))
    result = run(*STEP, "--budget", "60s")
    assert [str(request.workload) for request in requests] == [FORWARD, BACKWARD]
    assert [request.budget.seconds for request in requests] == [30, 48]  # the first took 12 s
    assert requests[1].budget.start > requests[0].budget.start
    assert "2 workloads, one after the other, 60 s for both passes of a training step\n" in (
        result.stderr
    )
    assert [each.op for request in requests for each in request.kernels[:1]] == ["fwd", "bwd"]


def test_a_budget_of_trials_is_shared(run: Run, canned: Searching) -> None:
    requests: Any = canned(record=predicted(config=CONFIG))
    run(*STEP, "--budget", "30")
    assert [request.budget.trials for request in requests] == [15, 30 - len(trials())]
    requests.clear()
    run(*STEP, "--budget", "1")
    assert [request.budget.trials for request in requests] == [1, 1]


def test_the_sum_and_its_speed_are_reported(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG, median_us=1000.0))
    flops = 3.5 * Workload.parse(FORWARD).flops
    said = run(*STEP).stdout
    assert said.count("Record, predicted") == 2
    sum_us = (
        f"Training step: 2,000.0 us = forward 1,000.0 us + backward 1,000.0 us, {flops / 2e9:,.1f}"
    )
    assert f"{sum_us} TFLOP/s of both passes\n" in said
    (step,) = json.loads(run(*STEP, "--json").stdout)["training_steps"]
    assert (step["forward"], step["backward"], step["sum_us"]) == (FORWARD, BACKWARD, 2000.0)
    assert step["tflops"] == pytest.approx(flops / 2e9)


def test_without_both_records_there_is_no_sum(run: Run, canned: Searching) -> None:
    canned(finished=trials()[6:])
    result = run(*STEP, "--json", code=3)
    assert "training_steps" not in json.loads(result.stdout)


def test_each_record_says_which_step_it_belongs_to(run: Run, fake: type[Fake]) -> None:
    asked = ("search", "--arch", "sm80", "--seqlen", "4096", "--forward-backward", "--budget", "4")
    names = ("attention_fwd_triton", "attention_bwd_triton")
    run(*asked, "--strategy", "random", *(word for name in names for word in ("--kernel", name)))
    kept = {r.workload.op: r for r in store.default_store().records() if r.arch == "sm80"}
    assert [kept[op].kernel for op in ("fwd", "bwd")] == list(names)
    assert kept["fwd"].provenance["training_step"] == {"backward": BACKWARD}
    step = kept["bwd"].provenance["training_step"]
    assert (step["forward"], step["kernel"]) == (FORWARD, kept["fwd"].kernel)
    assert (step["config"], step["median_us"]) == (kept["fwd"].config, kept["fwd"].median_us)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--backward",), "searches both passes: leave out --backward"),
        (("--decode", "--seqlen-k", "64"), "searches both passes: leave out --decode"),
        (("--resume",), "--resume is for one search, and --forward-backward makes two"),
        (("--replay", "x.jsonl"), "--replay is for one search"),
    ],
)
def test_options_that_contradict_it(
    run: Run, canned: Searching, arguments: tuple[str, ...], error: str
) -> None:
    requests: Any = canned()
    said = " ".join(run(*STEP, *arguments, code=2).stderr.replace("\n", " ").split())
    assert error in said and requests == []


def test_workloads_without_gradients_are_refused(run: Run, canned: Searching) -> None:
    asked = ("search", "--arch", "sm90", "--forward-backward", "-w")
    assert "has no backward pass" in run(*asked, "matmul_m64", code=2).stderr
    assert "attention in e4m3 has no gradient" in run(*asked, "q64_e4m3", code=1).stderr


@pytest.mark.parametrize("given", ["q64_d64", "bwd_q64_d64_deterministic"])
def test_either_pass_names_the_step(run: Run, canned: Searching, given: str) -> None:
    requests: Any = canned(record=predicted(config=CONFIG))
    run("search", "--arch", "sm90", "--forward-backward", "-w", given)
    forward, backward = (request.workload for request in requests)
    assert forward == training_step.forward(backward)
    assert (forward.op, backward.op, forward.deterministic) == ("fwd", "bwd", False)
    assert backward.deterministic == given.endswith("deterministic")


def test_deterministic_goes_with_the_backward_pass(run: Run, canned: Searching) -> None:
    requests: Any = canned(record=predicted(config=CONFIG))
    run(*STEP, "--deterministic", "--kernel", "attention_bwd_triton", "--kernel",
        "attention_fwd_triton")  # fmt: skip
    assert [request.workload.deterministic for request in requests] == [False, True]
    names = [[kernel.name for kernel in request.kernels] for request in requests]
    assert names == [["attention_fwd_triton"], ["attention_bwd_triton"]]
