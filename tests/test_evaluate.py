"""tunefa/evaluate.py: what becomes of configs; the compiler and the device are fakes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.fake_kernel import FakeLanguage, is_aligned
from tunefa import arch as archs
from tunefa import bench as measured_module
from tunefa import check, languages, model, timing
from tunefa import kernel as kernels
from tunefa.bench import Bench
from tunefa.check import Verdict
from tunefa.errors import TunefaError
from tunefa.evaluate import Predicted, Raced
from tunefa.languages import Compiled
from tunefa.measured import Lost, Measured
from tunefa.monitor import Monitor
from tunefa.trial import Config, Outcome, Resources, Trial
from tunefa.workload import Workload

SM90 = archs.load("sm90")
H200 = SM90.device("h200")
KERNEL = kernels.load("attention_fwd_triton")
WORKLOAD = Workload.parse("h4_kv2_q96_k160_d32")
CONFIG: dict[str, Any] = {
    "BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2,
    "LOADS": "pointer", "maxnreg": 0, "SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip
FITS = Resources(smem_bytes=20480, registers=128, spill_bytes=0, stack_bytes=0)


def config(block_m: int) -> dict[str, Any]:
    return {**CONFIG, "BLOCK_M": block_m}


def ok(block_m: int, time_us: float) -> Trial:
    return Trial(config(block_m), "ok", resources=FITS, predicted_us=time_us)


@pytest.fixture
def predicted() -> Iterator[Predicted]:
    with Predicted(KERNEL, WORKLOAD, SM90, H200, 2) as objective:
        yield objective


def test_a_compiled_trial_gets_the_models_time(predicted: Predicted) -> None:
    judged = predicted.judge(Trial(CONFIG, "ok", resources=FITS))
    expected = model.predict(WORKLOAD, SM90, H200, CONFIG, FITS).time_us
    assert judged == Trial(CONFIG, "ok", resources=FITS, predicted_us=expected)
    assert judged.median_us == expected


@pytest.mark.parametrize(
    "resources",
    [replace(FITS, smem_bytes=SM90.smem_per_block_bytes + 1), replace(FITS, registers=600)],
)
def test_a_block_that_fits_no_sm_is_refused(predicted: Predicted, resources: Resources) -> None:
    judged = predicted.judge(Trial(CONFIG, "ok", resources=resources))
    assert judged.outcome == "refused" and judged.median_us is None
    assert f"{resources.smem_bytes:,} B of shared memory" in judged.reason
    assert "fits no SM of sm90" in judged.reason and "232,448" in judged.reason


def test_a_failure_stays_what_it_is(predicted: Predicted) -> None:
    outcomes: list[Outcome] = ["compile_failed", "timeout", "crashed"]
    for outcome in outcomes:
        trial = Trial(CONFIG, outcome, "why")
        assert predicted.judge(trial) is trial


def test_the_pool_is_kept_busy_twice_over(predicted: Predicted) -> None:
    assert predicted.width == 4 and predicted.kind == "predicted"


def test_trials_come_as_they_are_ready(predicted: Predicted) -> None:
    slow, fast = config(16), config(128)

    def pending(of: Config, done: bool) -> Any:
        future = SimpleNamespace(done=lambda: done)
        return SimpleNamespace(future=future, trial=lambda: Trial(of, "ok", resources=FITS))

    predicted._pending.extend([pending(slow, False), pending(fast, True)])
    assert [predicted.next().config for _ in range(2)] == [fast, slow]


def test_where_the_interpreter_does_not_work_nothing_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    language = languages.load("triton")
    monkeypatch.setattr(language, "why_no_interpreter", lambda: "numpy is too new")
    with pytest.raises(TunefaError, match="could not be checked: numpy is too new"):
        Predicted(KERNEL, WORKLOAD, SM90, H200, 2)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The values of BLOCK_M whose configs the interpreter, here a fake, finds wrong."""
    found: set[int] = set()

    def interpret(kernel: Any, workload: Workload, each: Config) -> Verdict:
        return Verdict(0.5 if each["BLOCK_M"] in found else 1e-4, 0.0, workload)

    monkeypatch.setattr(check, "in_interpreter", interpret)
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
    assert "error 5.00e-01 (limit" in predicted.race([ok(32, 1.0)], None).trials[0].reason


def test_all_wrong_and_none_at_all(predicted: Predicted, wrong: set[int]) -> None:
    wrong |= {16, 32}
    assert {outcome for _, outcome, _ in raced(predicted, ok(16, 1.0), ok(32, 2.0))} == {"wrong"}
    assert predicted.race([], None) == Raced([])


# ------------------------------------------------------------------------------------- measured


class FakeStopwatch:
    """Launches once and says 10 us for the first samples; in a race, later racers are faster."""

    first_us = 10.0

    def samples_us(self, launch: Any, count: int) -> list[float]:
        launch()
        return [self.first_us] * count

    def once_us(self, launches: Any) -> list[float]:
        for launch in launches:
            launch()
        return [self.us(launch) for launch in launches]

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
            bench = vars(self).setdefault("bench", Bench(self.kernel, self.workload, self.arch))
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
