"""tunefa search for several workloads: one after the other, each with a record of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, Searching, trials
from tests.support.fake_objective import Fake
from tests.support.sample_records import predicted
from tunefa.store import results as store

GEMMA = ("search", "--arch", "sm90", "--seqlen", "8192", "--model", "gemma2-9b")
CHEAP = ("--kernel", "attention_fwd_cuda_sm80", "--strategy", "random")
WINDOW = "fwd_b1_h16_kv8_q8192_k8192_d256_bf16_causal_w4096_softcap"
GLOBAL = "fwd_b1_h16_kv8_q8192_k8192_d256_bf16_causal_softcap"


def test_a_model_is_searched_layer_by_layer(run: Run, canned: Searching) -> None:
    requests: Any = canned(finished=trials()[6:], record=predicted(config=CONFIG))
    result = run(*GEMMA, "--budget", "30s")
    assert [str(request.workload) for request in requests] == [WINDOW, GLOBAL]
    assert [request.budget.seconds for request in requests] == [30, 30]
    assert requests[1].budget.start > requests[0].budget.start
    assert "2 workloads, one after the other, 30 s for each\n" in result.stderr
    assert (
        f"[2/2] gemma2-9b, global attention with soft-capped scores (21 of 42 layers): {GLOBAL}"
        in result.stderr
    )
    assert result.stdout.count("Record, predicted") == 2


def test_two_workloads_are_searched(run: Run, canned: Searching) -> None:
    requests: Any = canned()
    asked = ("search", "--arch", "sm90", "-w", "q4096", "-w", "q2048_full", "--budget", "20")
    result = run(*asked, "--json", code=3)
    assert [request.workload.seqlen_q for request in requests] == [4096, 2048]
    said = json.loads(result.stdout)["workloads"]
    assert [each["workload"] for each in said] == [str(each.workload) for each in requests]
    assert "2 workloads, one after the other, 20 trials for each\n" in result.stderr
    alone = run(*asked[:-1], "1", "--json", code=3).stderr
    assert "2 workloads, one after the other, 1 trial for each\n" in alone


def test_out_holds_the_records_of_all(run: Run, fake: type[Fake]) -> None:
    asked = ("search", "--arch", "sm80", "-w", "q4096", "-w", "q2048", "--budget", "3", *CHEAP)
    run(*asked, "--out", "best.yaml")
    kept = store.read(Path("best.yaml"))
    assert sorted(record.workload.seqlen_q for record in kept) == [2048, 4096]
    assert len(store.default_store().best()) >= 2


def test_ctrl_c_ends_all_and_says_what_is_left(run: Run, canned: Searching) -> None:
    requests: Any = canned(finished=trials()[6:], interrupted=True)
    error = run(*GEMMA, code=130).stderr
    assert len(requests) == 1 and f"Not searched: {GLOBAL}\n" in error


def test_a_mistake_in_the_second_is_found_before_the_first(run: Run, canned: Searching) -> None:
    requests: Any = canned()
    asked = ("search", "--arch", "sm80", "-w", "q64", "-w")
    assert "workload 'q64x'" in run(*asked, "q64x", code=1).stderr
    assert "no kernel serves" in run(*asked, "q64_w32", code=1).stderr
    assert requests == []


def test_one_that_is_replayed_has_no_second(run: Run, fake: type[Fake], home: Path) -> None:
    run("search", "--arch", "sm80", "-w", "q1024", "--budget", "3", *CHEAP)
    (path,) = home.glob("journals/*.jsonl")
    replayed = ("search", "--replay", str(path), "--budget", "3", "-w", "q1024", "-w")
    assert "holds fwd_b1_h32_kv8_q1024_" in run(*replayed, "q64", code=1).stderr
