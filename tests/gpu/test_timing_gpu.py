"""tunefa/measure/timing.py on a device: a kernel timed in all modes."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import torch

from tests.support.gpu_kernels import seen_target
from tunefa.measure import check
from tunefa.measure.bench import Bench
from tunefa.measure.timing import Stopwatch
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import MODES, Mode, Trial
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu

KERNEL = kernels.load("attention_fwd_triton")
SMALL = Workload.parse("b1_h4_kv2_q128_k128_d64_bf16_causal")
SAMPLES = 31


def bench(mode: Mode) -> Bench:
    return Bench(Case(KERNEL, SMALL, seen_target()), mode)


def default() -> dict[str, Any]:
    return {**Case(KERNEL, SMALL, seen_target()).default(), "USE_TMA": 1}


def median_us(mode: Mode) -> float:
    """Returns the median of a config so small that the host takes longer than the device."""
    made = bench(mode)
    launch = made._prepared(default())
    return statistics.median(made._stopwatch.once_us([launch] * SAMPLES))


def test_a_graph_is_no_slower_than_an_eager_call() -> None:
    assert median_us("graph") <= 1.2 * median_us("eager")


@pytest.mark.parametrize("mode", MODES)
def test_what_is_timed_computes_attention(mode: Mode) -> None:
    made = bench(mode)
    launch = made._prepared(default())
    for written in made._tensors[3:]:
        written.fill_(float("nan"))
    torch.cuda.synchronize()
    assert made._stopwatch.once_us([launch])[0] > 0.0
    verdict = check.compare(SMALL, made._tensors, SMALL.head_dim**-0.5, torch.float32)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("mode", MODES)
def test_a_race_of_both_kinds_of_loads(mode: Mode) -> None:
    made = bench(mode)
    trials = [Trial({**default(), "USE_TMA": use_tma}, "ok") for use_tma in (1, 0)]
    trials = [made.judge(trial, float("inf")) for trial in trials]
    assert [(t.outcome, t.reason) for t in trials] == [("ok", "")] * 2
    raced = made.race(trials, trials[0].config, until=0.0)  # at once: the fewest rounds there are
    assert raced.winner is not None and raced.certificate is not None
    assert raced.certificate["rounds"] <= 12


def test_a_long_launch_costs_the_same_in_all_modes() -> None:
    """The modes take turns, as the clocks of the device fall during the test."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)

    def launch() -> None:
        torch.mm(a, a, out=out)

    watches = [Stopwatch(mode) for mode in MODES]
    timed = [(watch, [watch.prepared(launch)]) for watch in watches]
    rounds = [[watch.once_us(launches)[0] for watch, launches in timed] for _ in range(SAMPLES)]
    medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
    assert medians == pytest.approx([medians[0]] * len(MODES), rel=0.1)


def test_a_launch_in_a_step_costs_what_it_adds() -> None:
    """Not what the start of a graph takes, 6 us on an H200."""
    watch, small = Stopwatch("step"), torch.zeros(4096, device="cuda")
    nothing, one, four = (
        watch.prepared(lambda times=times: [small.add_(1.0) for _ in range(times)])  # type: ignore[misc]
        for times in (0, 1, 4)
    )
    samples = zip(*(watch.once_us([nothing, one, four]) for _ in range(SAMPLES)), strict=True)
    found = [statistics.median(each) for each in samples]
    assert found[0] < 0.8 and 0.5 < found[1] < 4.0, found
    assert 2.5 < found[2] / found[1] < 6.0, found
    assert small[0] > SAMPLES and bool((small == small[0]).all())  # each replay adds to all


@pytest.mark.parametrize("mode", ["graph", "step"])
def test_batches_that_begin_while_the_device_waits(mode: Mode) -> None:
    """Each round of a race does. The launch takes 10 us on an H200."""
    watch, few = Stopwatch(mode), torch.zeros(2**22, device="cuda")
    launch = watch.prepared(lambda: few.add_(1.0))
    expected_us = statistics.median(watch.once_us([launch] * 8 * SAMPLES))
    batches = []
    for _ in range(2 * SAMPLES):
        batches.append(watch.once_us([launch] * 8))
        time.sleep(0.005)
    medians = [statistics.median(each) for each in zip(*batches, strict=True)]
    assert medians == pytest.approx([expected_us] * 8, abs=1.0)
