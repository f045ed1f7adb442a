"""A device that is a fake, in this process: what a bench launches on it, and how it is timed."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.support.fake_kernel import FakeLanguage, FakeLaunch
from tests.support.predicted_case import WORKLOAD
from tunefa.compile.contract import Compiled, LaunchSpec
from tunefa.measure.bench import Bench
from tunefa.measure.measured import LostProcess, Measured
from tunefa.measure.monitor import Monitor
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Mode


class FakeStopwatch:
    """Launches once and says 10 us for the first samples; in a race, later racers are faster."""

    first_us = 10.0
    host_us: ClassVar[list[float]] = [0.0]
    """The times that the host takes for the launches of a screening, in turn."""

    def __init__(self, mode: Mode, device: str = "cuda") -> None:
        self.mode = mode

    def prepared(self, launch: Any) -> Any:
        return launch

    def times_us(self, launches: Any) -> list[tuple[float, float]]:
        for launch in launches:
            launch()
        turn = itertools.cycle(self.host_us)
        return [(self.first_us, next(turn)) for _ in launches]

    def once_us(self, launches: Any) -> list[float]:
        for launch in launches:
            launch()
        return [self.us(launch) for launch in launches]

    def us(self, launch: Any) -> float:
        """Returns the us of the launch that a function closes over: 1 for BLOCK_M 128, 8 for 16."""
        cells = [cell.cell_contents for cell in launch.__closure__]
        (prepared,) = [value for value in cells if isinstance(value, FakeLaunch)]
        return 128.0 / float(prepared.config["BLOCK_M"])


class Unwatched(Monitor):
    """No NVML here."""

    def __enter__(self) -> Monitor:
        return self


@dataclass
class Device(FakeLanguage):
    """A device whose launches fail in the way that BLOCK_M says.

    A fault is an error to raise, a word, or a function that spoils what a right kernel wrote.
    """

    faults: dict[int, Any] = field(default_factory=dict)
    aligned: list[bool] = field(default_factory=list)
    moves: int = 0

    def compile(self, case: Case, config: Config, aligned: bool = True) -> Compiled:
        self.aligned.append(aligned)
        return super().compile(case, config, aligned)

    def launch(self, spec: LaunchSpec, compiled: Compiled, tensors: Any) -> None:
        fault = self.faults.get(spec.config["BLOCK_M"])
        if isinstance(fault, Exception):
            raise fault
        super().launch(spec, compiled, tensors)
        if callable(fault):
            fault(tensors)
        if fault == "moving":
            self.moves += 1
            tensors[3].mul_(1.0 + self.moves / 64)
        if fault == "wrong" or (fault == "wrong when long" and spec.case.workload == WORKLOAD):
            tensors[3].mul_(1.5)


class InProcess(Measured):
    """With its bench in this process, where the fakes are."""

    def _submitted(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Future[Any]:
        future = Future[Any]()
        try:
            made = Bench(self.case, self.mode)
            future.set_result(getattr(vars(self).setdefault("bench", made), method)(*arguments))
        except RuntimeError as error:
            future.set_result(LostProcess("crashed", f"{type(error).__name__}: {error}"))
        return future

    def _result(self, asked: Future[Any], limit_s: float) -> Any:
        return asked.result()
