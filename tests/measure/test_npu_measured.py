"""Measuring on an NPU: torch.npu, triton-ascend and the compiler are stand-ins here.

Nobody ran it on one.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fake_device import InProcess, Unwatched
from tunefa.cli import targets
from tunefa.compile import languages
from tunefa.compile.contract import Compiled
from tunefa.errors import TunefaError
from tunefa.measure import check, measured, racing, sdpa, timing
from tunefa.measure.measured import MeasuredOnNpu
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import MemoryPlan, Mode, Resources, Trial
from tunefa.spec.workload import Workload

B3 = Target.named("ascend910b3")
KERNEL = kernels.load("attention_fwd_ascend")
WORKLOAD = Workload.parse("h4_kv2_q512_d64_fp16_causal")
CASE = Case(KERNEL, WORKLOAD, B3)
FITS = Resources(ub_bytes=100, planned=MemoryPlan({"ub": -0.5}), code="ab")


@dataclass
class Npu:
    """torch.npu: each launch takes as long as it is told to."""

    name: str = "Ascend910B3"
    clock_us: float = 0.0
    waits: int = 0
    launched: list[tuple[Any, ...]] = field(default_factory=list)
    wrong: bool = False

    def is_available(self) -> bool:
        return True

    def get_device_name(self, index: int) -> str:
        return self.name

    def synchronize(self) -> None:
        self.waits += 1

    def Event(self, enable_timing: bool) -> Any:
        assert enable_timing
        npu = self

        class Event:
            at_us = -1.0

            def record(self) -> None:
                self.at_us = npu.clock_us

            def elapsed_time(self, end: Any) -> float:
                assert npu.waits, "nothing has waited for the device yet"
                return float(end.at_us - self.at_us) / 1e3

        return Event()

    def launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """The kernel: 1 s with 64 x 64 tiles, less with larger ones; never what the host takes."""
        self.launched.append((grid, options))
        q, k, v, out, lse = arguments[:5]
        shape = Workload(
            seqlen_q=q.shape[2], seqlen_k=k.shape[2], heads=q.shape[1], heads_kv=k.shape[1],
            head_dim=q.shape[3], dtype="fp16", causal=True,
        )  # fmt: skip
        made = (q, k, v, out, lse)
        sdpa.write(check.inputs(shape, made, shape.head_dim**-0.5), out)
        group = q.shape[1] // k.shape[1]
        scores = q.double() @ k.double().repeat_interleave(group, 1).mT * q.shape[3] ** -0.5
        hidden = torch.ones(scores.shape[2:]).triu(1 + k.shape[2] - q.shape[2]).bool()
        lse.copy_(scores.masked_fill(hidden, -torch.inf).logsumexp(3).float())
        if self.wrong:
            out.mul_(2)
        constants = arguments[-7:]
        self.clock_us += 1e6 * 4096 / (constants[0] * constants[1])


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    """An NPU, whose memory is this machine's."""
    found, plain = Npu(), torch.empty
    fake = ModuleType("torch_npu")
    fake.__spec__ = importlib.machinery.ModuleSpec("torch_npu", None)
    monkeypatch.setitem(sys.modules, "torch_npu", fake)
    monkeypatch.setattr(torch, "npu", found, raising=False)
    monkeypatch.setattr("triton.Config.multibuffer", None, raising=False)

    def empty(size: int, dtype: Any, device: str) -> torch.Tensor:
        assert (size, device) == (512 * 2**20, "npu"), "more than twice the L2"
        return plain(16, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty)
    on_cpu = check.tensors
    monkeypatch.setattr(check, "tensors", lambda w, _, seed=None: on_cpu(w, "cpu", seed))
    monkeypatch.setattr(racing, "Monitor", Unwatched)

    def launcher(grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: found.launch(grid, *arguments, **options)

    kernel = SimpleNamespace(__getitem__=launcher)
    jit = type("Jit", (), {"__getitem__": lambda self, grid: kernel.__getitem__(grid)})
    monkeypatch.setattr(KERNEL.module, "device_function", jit)
    language = languages.load("ascend")
    monkeypatch.setattr(language, "compile", lambda *_: Compiled(None, lambda: FITS, 0.1))
    yield found


class Here(InProcess, MeasuredOnNpu):
    """With its bench in this process, where the stand-ins are."""


def test_what_is_there_is_found(npu: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = targets.choose("ascend910b3", None)
    assert chosen.present and chosen.target.device.name == "Ascend910B3"
    assert not targets.choose("ascend910b1", None).present
    monkeypatch.delattr("triton.Config.multibuffer")
    assert not targets.choose("ascend910b3", None).present, "this Triton launches on no NPU"


def test_without_torch_npu_there_is_none() -> None:
    assert not targets.choose("ascend910b3", None).present


def test_events_of_the_npu_say_the_time(npu: Npu) -> None:
    stopwatch = timing.Stopwatch("eager", "npu")

    def launch() -> None:
        npu.clock_us += 25.0

    [(device_us, host_us)] = stopwatch.times_us([stopwatch.prepared(launch)])
    assert device_us == pytest.approx(25.0) and host_us >= 0 and npu.waits == 1


def test_a_config_is_checked_and_timed(npu: Npu) -> None:
    default = CASE.default()
    with Here(CASE, 1) as objective:
        judged = objective.judge(Trial(default, "ok", resources=FITS))
        assert judged.outcome == "ok" and judged.error is not None, judged.reason
        assert judged.predicted_us is not None, "the law's, too"
        assert set(judged.samples_us) == {1e6} and len(judged.samples_us) == racing.SCREEN_SAMPLES
        grid, options = npu.launched[-1]
        assert grid == (20,), "32 tiles on 20 cores"
        assert options == KERNEL.module.triton_config(default)[1]
        larger = {**default, "BLOCK_N": 128}
        other = objective.judge(Trial(larger, "ok", resources=FITS))
        raced = objective.race([judged, other], default)
    assert raced.winner is not None and raced.winner.config == larger
    assert raced.certificate is not None


def test_one_that_is_wrong_is_not_timed(npu: Npu) -> None:
    npu.wrong = True
    with Here(CASE, 1) as objective:
        judged = objective.judge(Trial(CASE.default(), "ok", resources=FITS))
    assert judged.outcome == "wrong" and not judged.samples_us


def test_there_are_no_graphs(npu: Npu) -> None:
    assert measured.objective(B3.arch, "eager") is MeasuredOnNpu
    modes: tuple[Mode, ...] = ("graph", "step")
    for mode in modes:
        with pytest.raises(TunefaError, match=f"timed in eager mode only: leave out --mode {mode}"):
            measured.objective(B3.arch, mode)
