"""tunefa/measured.py and tunefa/bench.py on a device that is a fake, in this process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.fake_kernel import FakeLanguage, is_aligned
from tests.test_evaluate import CONFIG, FITS, H200, SM90, WORKLOAD, config, ok
from tunefa import bench as measured_module
from tunefa import check, languages, timing
from tunefa.bench import Bench
from tunefa.evaluate import Raced
from tunefa.languages import Compiled
from tunefa.measured import Lost, Measured
from tunefa.monitor import Monitor
from tunefa.trial import Mode, Trial


class FakeStopwatch:
    """Launches once and says 10 us for the first samples; in a race, later racers are faster."""

    first_us = 10.0

    def __init__(self, mode: Mode) -> None:
        self.mode = mode

    def prepared(self, launch: Any) -> Any:
        return launch

    def once_us(self, launches: Any) -> list[float]:
        for launch in launches:
            launch()
        alone = len(set(map(id, launches))) == 1
        return [self.first_us if alone else self.us(launch) for launch in launches]

    def us(self, launch: Any) -> float:
        """Of the config that a launch closes over: 128 takes 1 us, 16 takes 8."""
        (config,) = [c.cell_contents for c in launch.__closure__ if is_config(c.cell_contents)]
        return 128.0 / float(config["BLOCK_M"])


def is_config(value: Any) -> bool:
    return isinstance(value, dict) and "BLOCK_M" in value


class Unwatched(Monitor):
    """No NVML here."""

    def __enter__(self) -> Monitor:
        return self


@dataclass
class Device(FakeLanguage):
    """A device whose launches fail in the way that BLOCK_M says."""

    faults: dict[int, Any] = field(default_factory=dict)
    aligned: list[bool] = field(default_factory=list)
    moves: int = 0

    def compile(
        self, kernel: Any, workload: Any, config: Any, arch: Any, aligned: bool
    ) -> Compiled:
        self.aligned.append(aligned)
        return super().compile(kernel, workload, config, arch, aligned)

    def launch(self, *args: Any) -> None:
        tensors, workload, of = args[2:5]
        fault = self.faults.get(of["BLOCK_M"])
        if isinstance(fault, Exception):
            raise fault
        super().launch(*args)
        if fault == "moving":
            self.moves += 1
            tensors[3].mul_(1.0 + self.moves / 64)
        if fault == "wrong" or (fault == "wrong when long" and workload == WORKLOAD):
            tensors[3].mul_(1.5)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    fake = Device()
    on_cpu = check.tensors
    monkeypatch.setattr(languages, "load", lambda name: fake)
    monkeypatch.setattr(timing, "Stopwatch", FakeStopwatch)
    monkeypatch.setattr(check, "tensors", lambda workload, device: on_cpu(workload, "cpu"))
    monkeypatch.setattr(measured_module, "Monitor", Unwatched)
    return fake


class InProcess(Measured):
    """With its bench in this process, where the fakes are."""

    def _call(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Any:
        try:
            bench = vars(self).setdefault(
                "bench", Bench(self.kernel, self.workload, self.arch, self.mode)
            )
            return getattr(bench, method)(*arguments)
        except RuntimeError as error:
            return Lost("crashed", f"{type(error).__name__}: {error}")


@pytest.fixture
def measured(device: Device) -> Iterator[Measured]:
    kernel: Any = SimpleNamespace(
        name="fake", language="fake", module=SimpleNamespace(is_aligned=is_aligned)
    )
    objective = InProcess(kernel, WORKLOAD, SM90, H200, 1)
    with objective:
        yield objective


def test_a_right_config_is_timed(measured: Measured, device: Device) -> None:
    judged = measured.judge(Trial(CONFIG, "ok", resources=FITS))
    assert (judged.outcome, judged.median_us) == ("ok", 10.0)
    assert judged.predicted_us is not None and judged.error is not None
    assert len(judged.samples_us) == measured_module.SCREEN_SAMPLES
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
        (languages.CompileError("ptxas says no"), "compile_failed", "ptxas says no"),
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
        name="fake", language="fake", module=SimpleNamespace(is_aligned=is_aligned)
    )
    odd = replace(WORKLOAD, head_dim=36, head_dim_v=36)
    with InProcess(kernel, odd, SM90, H200, 1) as objective:
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


def test_a_hopeless_config_is_sampled_once(measured: Measured, device: Device) -> None:
    assert len(measured.judge(Trial(CONFIG, "ok", resources=FITS)).samples_us) > 1
    FakeStopwatch.first_us = 21.0
    try:
        judged = measured.judge(Trial(config(32), "ok", resources=FITS))
    finally:
        FakeStopwatch.first_us = 10.0
    assert judged.samples_us == (21.0,)


def test_a_moving_result_is_unstable(measured: Measured, device: Device) -> None:
    device.faults[64] = "moving"
    judged = measured.judge(Trial(CONFIG, "ok", resources=FITS))
    assert judged.outcome == "unstable" and "a race" in judged.reason


def test_a_race_that_loses_the_device_certifies_nothing(measured: Measured, device: Device) -> None:
    device.faults = {64: RuntimeError("an illegal memory access")}
    trials = [ok(16, 8.0), ok(64, 1.0)]
    assert measured.race(trials, None) == Raced(trials)


def test_a_race_without_a_right_finalist(measured: Measured, device: Device) -> None:
    device.faults = {64: "wrong when long"}
    found = measured.race([ok(64, 1.0)], None)
    assert [t.outcome for t in found.trials] == ["wrong"] and found.winner is None
    assert measured.race([], None) == Raced([])
