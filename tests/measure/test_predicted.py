"""tunefa/measure/predicted.py: what becomes of configs; the compiler and the device are fakes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.predicted_case import (
    CASE,
    CONFIG,
    FITS,
    KERNEL,
    SM90,
    TARGET,
    config,
    ok,
)
from tunefa.compile.pool import CompilePool, Pending
from tunefa.compile.workers import Workers
from tunefa.costmodel.anchor import Anchor
from tunefa.costmodel.estimate import estimate
from tunefa.measure import gate
from tunefa.measure.comparison import Comparison
from tunefa.measure.objective import Raced
from tunefa.measure.predicted import Predicted
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Outcome, Resources, Trial
from tunefa.spec.workload import Workload


@pytest.fixture
def predicted() -> Iterator[Predicted]:
    with Predicted(CASE, 2) as objective:
        yield objective


def test_a_compiled_trial_gets_the_models_time(predicted: Predicted) -> None:
    judged = predicted.judge(Trial(CONFIG, "ok", resources=FITS))
    made = estimate(CASE, CONFIG, FITS)
    assert judged == Trial(
        CONFIG, "ok", resources=FITS, predicted_us=made.time_us, predicted_sd=made.sd
    )
    assert judged.median_us == made.time_us > 0


def test_one_program_gets_one_prediction(predicted: Predicted) -> None:
    """A tile of more rows would take another time, but the code says that it is the same."""
    one = replace(FITS, code="ab")
    first = predicted.judge(Trial(CONFIG, "ok", resources=one))
    assert (
        predicted.judge(Trial(config(128), "ok", resources=one)).predicted_us == first.predicted_us
    )
    other = Trial(config(128), "ok", resources=replace(FITS, code="cd"))
    assert predicted.judge(other).predicted_us != first.predicted_us


def test_what_only_the_host_side_reads_counts_beside_the_code(predicted: Predicted) -> None:
    one = replace(FITS, code="ab")
    predicted.judge(Trial(CONFIG, "ok", resources=one))
    changed = {**CONFIG, "L2_SECTION_HEADS": 4}
    predicted.judge(Trial(changed, "ok", resources=one))
    assert len(predicted._by_code) == 2


@pytest.mark.parametrize(
    "resources",
    [replace(FITS, smem_bytes=SM90.smem_per_block_bytes + 1), replace(FITS, registers=600)],
)
def test_a_block_that_fits_no_sm_is_refused(predicted: Predicted, resources: Resources) -> None:
    judged = predicted.judge(Trial(CONFIG, "ok", resources=resources))
    assert judged.outcome == "refused" and judged.median_us is None
    assert f"{resources.smem_bytes:,} B of shared memory" in judged.reason
    assert "does not fit an SM of sm90" in judged.reason and "232,448" in judged.reason


def test_a_failure_stays_what_it_is(predicted: Predicted) -> None:
    outcomes: list[Outcome] = ["compile_failed", "timeout", "crashed"]
    for outcome in outcomes:
        trial = Trial(CONFIG, outcome, "why")
        assert predicted.judge(trial) is trial


def test_the_pool_is_kept_busy_twice_over(predicted: Predicted) -> None:
    assert predicted.width == 4 and predicted.kind == "predicted"


def pending(of: Config, done: bool) -> Pending:
    """A config whose compiler has ended, or never does."""
    future: Any = Future()
    if done:
        future.set_result(("ok", FITS, 0.1, ""))
    return Pending(of, future)


def test_trials_come_as_they_are_ready(predicted: Predicted) -> None:
    slow, fast = pending(config(16), False), pending(config(128), True)
    predicted._pending.extend([slow, fast])
    trial = predicted.next()
    assert trial is not None and trial.config == fast.config
    slow.future.set_result(("ok", FITS, 0.1, ""))
    trial = predicted.next(wait_s=0.0)
    assert trial is not None and trial.config == slow.config


def test_waiting_for_a_trial_ends(predicted: Predicted) -> None:
    predicted._pending.append(pending(config(16), False))
    start = time.monotonic()
    assert predicted.next(wait_s=0.2) is None
    assert 0.15 < time.monotonic() - start < 30


def test_without_an_interpreter_the_best_wins_unchecked(wrong: set[int]) -> None:
    wrong |= {16, 32}  # the interpreter would say so
    kernel = replace(KERNEL, space=replace(KERNEL.space, language="gluon"))
    with Predicted(replace(CASE, kernel=kernel), 2) as unchecked:
        assert raced(unchecked, ok(16, 9.0), ok(32, 5.0)) == [(32, "ok", None), (16, "ok", None)]
        assert unchecked.race([], None) == Raced([])
        assert unchecked.reserve_s == 0.0  # what the other keeps for the interpreter


def test_of_equals_the_default_is_the_best(predicted: Predicted, wrong: set[int]) -> None:
    found = predicted.race([ok(16, 5.0), ok(32, 5.0), ok(64, 5.0)], config(32))
    assert found.winner is not None and found.winner.config == config(32)


def test_what_spills_gives_way_to_what_is_near(predicted: Predicted, wrong: set[int]) -> None:
    spilled = replace(ok(16, 100.0), resources=replace(FITS, spill_bytes=8))
    for other_us, best in ((114.0, 32), (116.0, 16)):
        found = predicted.race([spilled, ok(32, other_us)], config(16))
        assert found.winner is not None and found.winner.config == config(best)


def test_a_slow_first_compiler_raises_the_reserve(
    predicted: Predicted, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = [pending(CONFIG, False), pending(config(32), False)]
    queue = list(started)
    monkeypatch.setattr(predicted._pool, "submit", lambda each, rank: queue.pop(0))
    predicted.submit(CONFIG)
    predicted.submit(config(32))
    for each in started:  # only the first says it: others wait for a free compiler
        clock.sleep(8.0)
        each.future.set_result(("ok", FITS, 0.1, ""))
        assert predicted.reserve_s == 12.0


def test_a_prepared_config_is_compiled_once(predicted: Predicted) -> None:
    scheduled: list[Any] = []

    class Counting(Workers):
        def submit(self, task: Any, arguments: Any, limit_s: float, rank: int = 0) -> Any:
            scheduled.append(arguments[1])
            return pending(arguments[1], True).future

    with Counting(1) as compilers:
        predicted.prepare(CONFIG, compilers)
    assert not predicted._pending, "it is not in progress yet"
    predicted.submit(CONFIG)
    trial = predicted.next(wait_s=0.0)
    assert trial is not None and (trial.config, trial.outcome) == (CONFIG, "ok")
    assert scheduled == [CONFIG]


def test_a_prepared_config_is_hurried_when_it_is_asked_for(
    predicted: Predicted, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried: list[Any] = []
    monkeypatch.setattr(CompilePool, "submit", lambda self, each, *_: pending(each, False))
    monkeypatch.setattr(CompilePool, "hurry", lambda self, each: hurried.append(each.config))
    with Workers(1) as compilers:
        predicted.prepare(CONFIG, compilers)
    assert hurried == []
    predicted.submit(CONFIG)
    predicted.submit(config(32))
    assert hurried == [CONFIG]


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The values of BLOCK_M whose configs the interpreter, here a fake, finds wrong."""
    found: set[int] = set()

    def interpret(case: Case, each: Config) -> Comparison:
        return Comparison(0.5 if each["BLOCK_M"] in found else 1e-4, 0.0, case.workload)

    monkeypatch.setattr(gate, "in_interpreter", interpret)
    return found


def raced(predicted: Predicted, *trials: Trial) -> list[tuple[int, str, float | None]]:
    found = predicted.race(trials, None)
    assert found.winner in [t for t in found.trials if t.outcome == "ok"] + [None]
    return [(t.config["BLOCK_M"], t.outcome, t.error) for t in found.trials]


def test_only_the_best_is_checked_if_it_is_right(predicted: Predicted, wrong: set[int]) -> None:
    got = raced(predicted, ok(16, 9.0), ok(32, 5.0), ok(64, 7.0))
    assert got == [(32, "ok", 1e-4), (64, "ok", None), (16, "ok", None)]


def test_a_wrong_one_gives_way_to_the_next(predicted: Predicted, wrong: set[int]) -> None:
    wrong |= {32, 64}
    got = raced(predicted, ok(16, 9.0), ok(32, 5.0), ok(64, 7.0), ok(128, 11.0))
    assert got[0] == (16, "ok", 1e-4)
    assert sorted(got[1:]) == [(32, "wrong", 0.5), (64, "wrong", 0.5), (128, "ok", None)]
    assert "error 5.00e-01 over all rows" in predicted.race([ok(32, 1.0)], None).trials[0].reason


def test_all_wrong_and_none_at_all(predicted: Predicted, wrong: set[int]) -> None:
    wrong |= {16, 32}
    assert {outcome for _, outcome, _ in raced(predicted, ok(16, 1.0), ok(32, 2.0))} == {"wrong"}
    assert predicted.race([], None) == Raced([])


def test_an_anchor_puts_known_configs_before_what_gains_little() -> None:
    workload = Workload.parse("q4096_d128_full")
    case = Case(kernels.load("attention_fwd_gluon_sm90"), workload, TARGET)
    anchor = Anchor.of([], workload, TARGET, [case.kernel])
    default = case.default()
    with Predicted(case, 1, None, anchor) as anchored:
        known = anchored.judge(Trial(default, "ok", resources=FITS))
        expected = anchor.expected(case.kernel.name, default, FITS)
        assert (known.predicted_us, known.predicted_sd) == (expected.time_us, expected.sd)
        for times, wins in ((0.9, default), (0.5, {**default, "PING_PONG": 1})):
            us = times * (known.predicted_us or 0.0)
            other = replace(known, config={**default, "PING_PONG": 1}, predicted_us=us)
            won = anchored.race([other, known], default).winner
            assert won is not None and won.config == wins
