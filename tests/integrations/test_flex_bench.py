"""The objective of FlexAttention's options, on the CPU: its kernels there have no such options."""

from __future__ import annotations

from concurrent.futures import TimeoutError
from typing import Any

import pytest

from tests.support.flex_on_cpu import H200, Here, Unwatched, calls, eager
from tunefa.compile.contract import CompileError
from tunefa.compile.workers import ProcessLost, TaskRaised
from tunefa.integrations import flex_bench, flex_kernels, flex_traced
from tunefa.integrations.flex_bench import FlexMeasured
from tunefa.integrations.flex_calls import FlexCall, workload_of
from tunefa.integrations.flex_check import Truth
from tunefa.measure import racing
from tunefa.measure.timing import HostStopwatch
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "Monitor", Unwatched)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", flex_traced.caches())


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> FlexCall:
    return calls(monkeypatch)[0]


def configs(call: FlexCall) -> list[Config]:
    workload = workload_of(call)
    assert workload is not None
    return list(Case(flex_kernels.kernel_of(call), workload, H200).feasible().configs)


def objective(call: FlexCall, workers: Any = None) -> FlexMeasured:
    truth = Truth(call, lambda: eager(call))
    compilers: Any = workers or Here()
    return FlexMeasured(call, truth, compilers, HostStopwatch())


def test_a_config_is_compiled_elsewhere_then_checked_and_timed(forward: FlexCall) -> None:
    workers, config = Here(), configs(forward)[0]
    with objective(forward, workers) as made:
        assert made.next(0.0) is None
        made.submit(config)
        ((traced, options, folder),) = workers.tasks
        assert options == flex_kernels.options(config) and folder == flex_traced.caches()
        assert traced == flex_traced.TracedCall.of(forward)
        trial = made.next()
    assert trial is not None and (trial.outcome, trial.config) == ("ok", config)
    assert trial.error is not None and trial.error < 1e-4 and len(trial.samples_us) == 5
    assert made.next(0.0) is None


@pytest.mark.parametrize(
    ("answer", "outcome", "said"),
    [
        ("OutOfResources: shared memory", "compile_failed", "OutOfResources: shared memory"),
        (TimeoutError(), "timeout", "compiling took over 60 s"),
        (ProcessLost("died with exit code -11"), "crashed", "process died with exit code -11"),
        (TaskRaised("raised KeyError"), "crashed", "process raised KeyError"),
    ],
)
def test_a_config_that_does_not_compile_is_a_trial(
    forward: FlexCall, answer: Any, outcome: str, said: str
) -> None:
    made = objective(forward, Here(answer=answer))
    made.submit(configs(forward)[0])
    trial = made.next()
    assert trial is not None and trial.outcome == outcome and said in trial.reason


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(CompileError("no"), "compile_failed"), (RuntimeError("CUDA error: launch"), "crashed")],
)
def test_a_config_that_fails_here_is_a_trial(
    forward: FlexCall, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: str
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(flex_bench, "run_of", fails)
    trial = objective(forward).judge(configs(forward)[0])
    assert trial.outcome == outcome and str(error) in trial.reason


def test_wrong_results_are_not_timed(forward: FlexCall, monkeypatch: pytest.MonkeyPatch) -> None:
    made = objective(forward)
    results, count = eager(forward), iter(range(100))
    monkeypatch.setattr(flex_bench, "run_of", lambda *_: lambda: tuple(2 * x for x in results))
    wrong = made.judge(configs(forward)[0])
    assert wrong.outcome == "wrong" and not wrong.samples_us and "relative error" in wrong.reason
    monkeypatch.setattr(
        flex_bench, "run_of", lambda *_: lambda: tuple(x + 1e-6 * next(count) for x in results)
    )
    assert made.judge(configs(forward)[0]).outcome == "unstable"
    assert made.race([wrong], None).winner is None


def test_finalists_race(forward: FlexCall) -> None:
    made, (first, second, third, *_) = objective(forward), configs(forward)
    trials = [made.judge(config) for config in (first, second)]
    failed = Trial(third, "compile_failed", "no")
    raced = made.race([*trials, failed], first, 0.0)
    assert raced.winner is not None and raced.winner.config in (first, second)
    assert len(raced.winner.samples_us) >= 12 and len(raced.trials) == 3
    assert raced.certificate is not None and raced.certificate["racers"] == 2
    assert raced.certificate["device"] == {"watched": False}


def test_dropped_configs_are_not_returned(forward: FlexCall) -> None:
    made = objective(forward, Here(answer="no"))
    made.submit(configs(forward)[0])
    made.abandon()
    assert made.next(0.0) is None
