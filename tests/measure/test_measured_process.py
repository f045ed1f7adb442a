"""The process of tunefa/measure/measured.py: a new one where its device may be unusable."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from tests.support.fake_device import Device
from tests.support.predicted_case import CASE, CONFIG, FITS, config
from tunefa.compile.pool import Pending
from tunefa.compile.workers import ProcessLost, Workers
from tunefa.measure import measured
from tunefa.measure.measured import LostProcess, Measured, _bench, _benches
from tunefa.measure.objective import Raced
from tunefa.spec import kernel as kernels
from tunefa.spec.trial import Trial

COMPILED = Trial(CONFIG, "ok", resources=FITS)


class Numbered(Workers):
    """Calls tasks in this process; `number` counts the processes that there would have been."""

    def __init__(self) -> None:
        self.number = 1
        self.stopped = 0

    def submit(
        self,
        task: Callable[..., Any],
        arguments: tuple[Any, ...],
        limit_s: float,
        rank: int = 0,
    ) -> Any:
        future: Future[Any] = Future()
        try:
            future.set_result(task(*arguments))
        except (TimeoutError, ProcessLost) as error:  # a real pool has replaced its process
            self.number += 1
            future.set_exception(error)
        return future

    def renew(self) -> None:
        self.number += 1

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def process() -> Numbered:
    return Numbered()


def judged_with(
    monkeypatch: pytest.MonkeyPatch, process: Numbered, *found: Any
) -> list[tuple[Trial, int]]:
    """The trial for each thing that is found, and the number of its process."""
    left = list(found)

    def run(task: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        numbers.append(process.number)
        says = left.pop(0)
        if isinstance(says, Exception):
            raise says
        return says

    numbers: list[int] = []
    monkeypatch.setattr(measured, "run_in_process", run)
    with Measured(CASE, 1, process) as objective:
        trials = [objective.judge(COMPILED) for _ in found]
    return list(zip(trials, numbers, strict=True))


def test_after_an_error_on_the_device_there_is_a_new_process(
    monkeypatch: pytest.MonkeyPatch, process: Numbered
) -> None:
    """A CUDA context that met an illegal access refuses all that comes after it."""
    fine = replace(COMPILED, samples_us=(7.0,))
    illegal = LostProcess("crashed", "RuntimeError: an illegal memory access was encountered")
    found = judged_with(monkeypatch, process, fine, illegal, fine, illegal, illegal, fine)
    assert [trial.outcome for trial, _ in found] == [
        "ok", "crashed", "ok", "crashed", "crashed", "ok",
    ]  # fmt: skip
    assert [number for _, number in found] == [1, 1, 2, 2, 3, 4]


def test_what_follows_a_config_that_breaks_the_device_is_begun_again(
    monkeypatch: pytest.MonkeyPatch, process: Numbered
) -> None:
    """The process has two configs at a time, and the second one would find the device broken."""
    judged: list[tuple[int, int]] = []
    broken: set[int] = set()

    def run(task: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        tile = arguments[0].config["BLOCK_M"]
        judged.append((tile, process.number))
        broken.update({process.number} if tile == 32 else ())
        if process.number in broken:
            return LostProcess("crashed", "an illegal memory access")
        return replace(arguments[0], samples_us=(7.0,))

    monkeypatch.setattr(measured, "run_in_process", run)
    with Measured(CASE, 1, process) as objective:
        objective._pending.extend(map(pending, (16, 32, 64, 128)))
        found = [objective.next() for _ in range(4)]
    assert [each and each.outcome for each in found] == ["ok", "crashed", "ok", "ok"]
    assert judged == [(16, 1), (32, 1), (64, 1), (64, 2), (128, 2)]


def pending(tile: int) -> Pending:
    done: Any = Future()
    done.set_result(("ok", FITS, 0.1, ""))
    return Pending(config(tile), done)


@pytest.mark.parametrize("how", [TimeoutError(), ProcessLost("died with exit code -11")])
def test_what_follows_a_config_that_ends_its_process(
    monkeypatch: pytest.MonkeyPatch, process: Numbered, how: Exception
) -> None:
    """It is begun again while there is time, and dropped after the search's end."""
    judged: list[int] = []

    def run(task: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        judged.append(tile := arguments[0].config["BLOCK_M"])
        if tile == 16:
            raise how
        return replace(arguments[0], samples_us=(7.0,))

    monkeypatch.setattr(measured, "run_in_process", run)
    with Measured(CASE, 1, process) as objective:
        assert isinstance(objective, Measured)
        objective._pending.extend(map(pending, (16, 32)))
        found = [objective.next(), objective.next()]
        assert [each and each.outcome for each in found][1] == "ok"
        assert judged == [16, 32, 32]
        objective._pending.extend(map(pending, (16, 64)))
        objective._begin_more(0.0, time.monotonic() + 0.2)
        assert len(objective._running) == 2
        time.sleep(0.25)
        last = [objective.settle(), objective.settle()]
        assert [each and each.config for each in last] in ([config(16), None], [None, None])
        assert judged == [16, 32, 32, 16, 64], "64 was not begun again"


def test_ctrl_c_while_a_process_is_renewed_loses_no_trial(
    monkeypatch: pytest.MonkeyPatch, process: Numbered
) -> None:
    """The trial behind the first one is cancelled then."""
    lost = LostProcess("crashed", "an illegal memory access")
    monkeypatch.setattr(measured, "run_in_process", lambda *_: lost)
    with Measured(CASE, 1, process) as objective:
        assert isinstance(objective, Measured)
        objective._pending.extend(map(pending, (16, 32)))
        objective._begin_more(0.0, time.monotonic() + 9.0)
        cancelled: Future[Any] = Future()
        cancelled.cancel()
        objective._running[1] = replace(objective._running[1], judged=cancelled)
        renew = process.renew

        def pressed() -> None:
            monkeypatch.setattr(process, "renew", renew)
            raise KeyboardInterrupt

        monkeypatch.setattr(process, "renew", pressed)
        with pytest.raises(KeyboardInterrupt):
            objective.next()
        monkeypatch.setattr(objective, "_on_device", lambda *_: objective._running[0])
        trial = objective.settle()
        assert trial is not None and trial.config == config(16) and trial.outcome == "crashed"


def test_what_is_merely_wrong_keeps_the_process(
    monkeypatch: pytest.MonkeyPatch, process: Numbered
) -> None:
    wrong = replace(COMPILED, outcome="wrong", reason="error 5.0e-01")
    found = judged_with(monkeypatch, process, wrong, wrong)
    assert [number for _, number in found] == [1, 1]


def test_a_process_that_died_or_was_ended_is_replaced_once(
    monkeypatch: pytest.MonkeyPatch, process: Numbered
) -> None:
    died = ProcessLost("died with exit code -11")
    found = judged_with(monkeypatch, process, TimeoutError(), died, COMPILED)
    assert [(trial.outcome, number) for trial, number in found] == [
        ("timeout", 1), ("crashed", 2), ("ok", 3),
    ]  # fmt: skip
    assert found[1][0].reason == "the process died with exit code -11"


@pytest.mark.parametrize("error", [SystemExit("bye"), KeyboardInterrupt(), ValueError("no")])
def test_what_a_launch_raises_is_an_outcome(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Even what would end this process, and what a user's Ctrl-C raises."""

    def bench(task: Any) -> Any:
        raise error

    monkeypatch.setattr(measured, "_bench", bench)
    found = measured.run_in_process((CASE.names, "eager"), "judge", (COMPILED, 1.0))
    assert found == LostProcess("crashed", f"{type(error).__name__}: {error}".removesuffix(": "))


def test_a_race_that_lost_its_device_renews_it_too(
    monkeypatch: pytest.MonkeyPatch, process: Numbered
) -> None:
    monkeypatch.setattr(
        measured, "run_in_process", lambda *_: LostProcess("crashed", "RuntimeError: no more")
    )
    with Measured(CASE, 1, process) as objective:
        assert objective.race([], None) == Raced([])
        assert isinstance(objective, Measured)
        objective.race_kernels(COMPILED, [])
    assert process.number == 3


def test_a_process_that_was_lent_is_not_ended(process: Numbered) -> None:
    with Measured(CASE, 1, process):
        pass
    assert process.stopped == 0


def test_the_best_so_far_is_what_the_bench_is_told(
    monkeypatch: pytest.MonkeyPatch, process: Numbered
) -> None:
    to_beat: list[float] = []
    times = iter([9.0, 5.0, 7.0, 1.0])

    def run(task: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        trial, best_us = arguments
        to_beat.append(best_us)
        outcome = "wrong" if len(to_beat) == 3 else "ok"
        return replace(trial, outcome=outcome, samples_us=(next(times),))

    monkeypatch.setattr(measured, "run_in_process", run)
    with Measured(CASE, 1, process) as objective:
        for _ in range(4):
            objective.judge(COMPILED)
    assert to_beat == [float("inf"), 9.0, 5.0, 5.0]


def test_the_kernels_of_a_search_share_their_tensors(device: Device) -> None:
    """It takes a second to make them, and what the check compares with."""
    _benches.clear()
    own, other = kernels.load("attention_fwd_triton"), kernels.load("attention_fwd_cuda_sm80")
    tasks: list[Any] = [
        (replace(CASE, kernel=kernel, workload=workload).names, "eager")
        for workload in (CASE.workload, replace(CASE.workload, batch=3))
        for kernel in (own, other)
    ]
    made = [_bench(task) for task in tasks]
    assert [each.case.kernel.name for each in made] == 2 * [own.name, other.name]
    for first, second in (made[:2], made[2:]):
        assert second._gate is first._gate and second._tensors is first._tensors
    assert made[0]._gate is not made[2]._gate and len(_benches) == 1
