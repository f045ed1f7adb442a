"""tunefa/measure/measured.py and bench.py on a device that is a fake, in this process."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fake_device import Device, FakeStopwatch, InProcess
from tests.support.fake_kernel import FakeLaunch, is_aligned
from tests.support.own_kernels import FAULTY_SOURCE, FAULTY_SPACE, OwnKernels
from tests.support.predicted_case import CASE, CONFIG, FITS, KERNEL, WORKLOAD, config, ok
from tests.support.processes import alive
from tunefa.compile.contract import CompileError
from tunefa.compile.workers import Workers
from tunefa.measure import racing, timing
from tunefa.measure.measured import (
    RACE_MARGIN_S,
    Measured,
    _bench,
    _benches,
    gpu_objective,
)
from tunefa.measure.objective import Raced
from tunefa.spec.trial import MODES, Mode, Trial


def test_a_right_config_is_timed(measured: Measured, device: Device) -> None:
    judged = measured.judge(Trial(CONFIG, "ok", resources=FITS))
    assert (judged.outcome, judged.median_us) == ("ok", 10.0)
    assert judged.predicted_us is not None and judged.error is not None
    assert len(judged.samples_us) == racing.SCREEN_SAMPLES
    assert device.compiled and device.aligned == [True, True]


def test_what_the_compiler_refused_never_reaches_the_device(
    measured: Measured, device: Device
) -> None:
    measured.judge(Trial(CONFIG, "timeout", "too long"))
    measured.judge(Trial(CONFIG, "ok", resources=replace(FITS, registers=600)))
    assert not device.launched and not device.compiled


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("wrong", "wrong", "error 5.0"),
        (RuntimeError("Triton Error [CUDA]: out of resource"), "crashed", "out of resource"),
        (torch.OutOfMemoryError("no memory"), "crashed", "OutOfMemoryError: no memory"),
        (CompileError("ptxas says no"), "compile_failed", "ptxas says no"),
    ],
)
def test_a_config_that_fails_on_the_device_is_not_timed(
    measured: Measured, device: Device, fault: Any, outcome: str, reason: str
) -> None:
    device.faults[64] = fault
    judged = measured.judge(Trial(CONFIG, "ok", resources=FITS))
    assert judged.outcome == outcome and reason in judged.reason
    assert judged.samples_us == () and judged.median_us == judged.predicted_us
    assert measured.judge(Trial(config(32), "ok", resources=FITS)).outcome == "ok"


def test_strides_that_are_no_multiples_of_16_use_the_other_variant(device: Device) -> None:
    kernel: Any = SimpleNamespace(
        name="fake",
        language="fake",
        is_library=False,
        module=SimpleNamespace(is_aligned=is_aligned),
        space=KERNEL.space,
    )
    odd = replace(WORKLOAD, head_dim=36, head_dim_v=36)
    with InProcess(replace(CASE, kernel=kernel, workload=odd), 1) as objective:
        assert objective.judge(Trial(CONFIG, "ok", resources=FITS)).outcome == "ok"
    assert device.aligned == [False, False]


def test_finalists_are_checked_on_the_real_shape_and_raced(
    measured: Measured, device: Device
) -> None:
    trials = [replace(ok(size, 1.0), samples_us=(10.0,)) for size in (16, 32, 64, 128)]
    device.faults = {32: "wrong when long", 64: "wrong when long"}
    found = measured.race(trials, config(16))
    got = found.trials
    assert [(t.config["BLOCK_M"], t.outcome) for t in got] == [
        (128, "ok"), (16, "ok"), (32, "wrong"), (64, "wrong"),
    ]  # fmt: skip
    assert found.winner == got[0]
    assert [t.median_us for t in got[:2]] == [1.0, 8.0]
    assert all(t.error is not None and math.isfinite(t.error) for t in got[:3])
    certificate = found.certificate
    assert certificate is not None
    assert certificate["gain_over_default"] == {"estimate": 7.0, "low": 7.0, "high": 7.0}
    assert certificate["runner_up"]["config"] == config(16)
    assert (certificate["noise_floor"], certificate["racers"]) == (0.0, 2)


def test_a_hopeless_config_is_hardly_sampled(
    measured: Measured, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(measured.judge(Trial(CONFIG, "ok", resources=FITS)).samples_us) == 5
    monkeypatch.setattr(FakeStopwatch, "first_us", 21.0)
    judged = measured.judge(Trial(config(32), "ok", resources=FITS))
    assert judged.samples_us == (21.0, 21.0)


@pytest.mark.parametrize("paused", [0, 1, 2])
def test_a_pause_of_the_host_does_not_condemn_a_config(
    measured: Measured, device: Device, monkeypatch: pytest.MonkeyPatch, paused: int
) -> None:
    """A compiler takes the core for a while: the least host time counts for all samples."""
    measured.judge(Trial(CONFIG, "ok", resources=FITS))
    monkeypatch.setattr(FakeStopwatch, "first_us", 8.0)
    host_us = [4000.0 if place == paused else 9.0 for place in range(5)]
    monkeypatch.setattr(FakeStopwatch, "host_us", host_us)
    judged = measured.judge(Trial(config(32), "ok", resources=FITS))
    assert judged.samples_us == (9.0,) * 5


def test_nor_does_one_within_what_the_device_is_timed_by(
    measured: Measured, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured.judge(Trial(CONFIG, "ok", resources=FITS))

    def times_us(self: FakeStopwatch, launches: Any) -> list[tuple[float, float]]:
        return [(4000.0, 1.0)] + [(9.0, 1.0)] * (len(launches) - 1)

    monkeypatch.setattr(FakeStopwatch, "times_us", times_us)
    judged = measured.judge(Trial(config(32), "ok", resources=FITS))
    assert len(judged.samples_us) == 5 and judged.median_us == 9.0


def test_one_program_is_timed_once(
    measured: Measured, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is checked for every config, because the checks have other shapes."""
    monkeypatch.setattr(FakeLaunch, "key", "one grid", raising=False)
    one, other = replace(FITS, code="ab"), replace(FITS, code="cd")
    measured.judge(Trial(config(16), "ok", resources=one))
    monkeypatch.setattr(FakeStopwatch, "first_us", 8.0)
    assert measured.judge(Trial(config(64), "ok", resources=other)).median_us == 8.0
    device.launched.clear()
    again = measured.judge(Trial(config(32), "ok", resources=one))
    assert again.config == config(32) and again.samples_us == (10.0,) * 5
    assert again.error is not None and device.launched, "it was checked"
    device.faults[128] = "wrong"
    assert measured.judge(Trial(config(128), "ok", resources=one)).outcome == "wrong"


def test_a_program_with_another_launch_is_timed(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2_SECTION_MB makes such ones: only the host side reads it."""
    same = replace(FITS, code="ab")
    measured.judge(Trial(config(16), "ok", resources=same))  # has no key
    monkeypatch.setattr(FakeStopwatch, "first_us", 8.0)
    for key, us in (("first", 8.0), ("second", 6.0)):
        monkeypatch.setattr(FakeStopwatch, "first_us", us)
        monkeypatch.setattr(FakeLaunch, "key", key, raising=False)
        assert measured.judge(Trial(config(32), "ok", resources=same)).median_us == us


def test_one_program_races_once_as_the_default(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLaunch, "key", "one grid", raising=False)
    codes = {16: "ab", 32: "ab", 64: "cd", 128: "cd"}
    trials = [
        Trial(config(size), "ok", resources=replace(FITS, code=code), samples_us=(10.0,))
        for size, code in codes.items()
    ]
    found = measured.race(trials, config(32))
    raced = [trial for trial in found.trials if len(trial.samples_us) > 1]
    assert [trial.config["BLOCK_M"] for trial in raced] == [64, 32]
    assert found.certificate is not None and found.certificate["racers"] == 2
    assert {trial.config["BLOCK_M"] for trial in found.trials} == set(codes)


def test_a_moving_result_is_unstable(measured: Measured, device: Device) -> None:
    device.faults[64] = "moving"
    judged = measured.judge(Trial(CONFIG, "ok", resources=FITS))
    assert judged.outcome == "unstable" and "a race condition" in judged.reason


def test_a_race_that_loses_the_device_certifies_nothing(measured: Measured, device: Device) -> None:
    device.faults = {64: RuntimeError("an illegal memory access")}
    trials = [replace(ok(size, 8.0 / size), error=1e-3) for size in (16, 32, 64)]
    refused = {"refused": "the race was lost: RuntimeError: an illegal memory access"}
    assert measured.race(trials, None) == Raced(trials, trials[2], refused)
    unchecked = [ok(64, 1.0)]
    assert measured.race(unchecked, None) == Raced(unchecked)


def test_a_long_race_ends_before_its_process_is(device: Device) -> None:
    asked: list[tuple[float, float]] = []

    class Asked(InProcess):
        def _call(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Any:
            asked.append((arguments[2], time.monotonic() + limit_s))
            return Raced([])

    with Asked(CASE, 1) as objective:
        objective.race([], None)
        objective.race([], None, until=5.0)
    (until, killed), (early, _) = asked
    assert until <= killed - RACE_MARGIN_S + 1.0 and until > time.monotonic()
    assert early == 5.0


def test_a_race_without_a_right_finalist(measured: Measured, device: Device) -> None:
    device.faults = {64: "wrong when long"}
    found = measured.race([ok(64, 1.0)], None)
    assert [t.outcome for t in found.trials] == ["wrong"] and found.winner is None
    assert measured.race([], None) == Raced([])


@pytest.mark.parametrize("mode", MODES)
def test_launches_are_timed_in_the_mode_that_was_asked_for(
    device: Device, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    modes = []

    class Seen(FakeStopwatch):
        def __init__(self, mode: Mode, device: str) -> None:
            super().__init__(mode, device)
            modes.append(mode)

    monkeypatch.setattr(timing, "Stopwatch", Seen)
    objective = gpu_objective(mode)
    assert objective.mode == mode and objective.kind == "measured"
    made = objective(CASE, 1)
    with made:
        _benches.clear()
        _bench(made._task)
        _bench(made._task)
    assert modes == [mode] and len(_benches) == 1


def test_no_compiler_runs_beside_a_race(
    own_kernels: OwnKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C leaves compiles under way: a real pool with compilers that hang."""
    bench = Workers(1)
    bench.submit(os.getpid, (), 30.0).result()
    monkeypatch.setenv("TUNEFA_QUIET", "1")  # the compilers have it, the bench's process has not
    kernel = own_kernels.add("hangs_beside", FAULTY_SOURCE, FAULTY_SPACE)
    running: list[list[str]] = []

    class Racing(Measured):
        def _call(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Any:
            assert method == "race"
            running.append(alive("TUNEFA_QUIET"))
            return Raced([])

    with bench, Racing(replace(CASE, kernel=kernel), 2, bench) as objective:
        objective.submit({"FAULT": "none"})
        objective._compiled(60.0)
        for _ in range(4):
            objective.submit({"FAULT": "hang"})
        while not any("sleep" in line for line in alive("TUNEFA_QUIET")):
            time.sleep(0.05)
        assert objective.race([], None) == Raced([])
    assert running == [[]]


def test_a_config_that_is_timed_again_keeps_its_samples(
    measured: Measured, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = measured.judge(Trial(CONFIG, "ok", resources=FITS))
    monkeypatch.setattr(FakeStopwatch, "first_us", 12.0)
    again = measured.retime(trial, 9.0)
    assert again is not None and again.error == trial.error
    assert again.samples_us == (10.0,) * 5 + (12.0,) * 5
    device.faults[CONFIG["BLOCK_M"]] = RuntimeError("an illegal memory access")
    assert measured.retime(trial, 9.0) is None
