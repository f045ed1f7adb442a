"""tunefa/measure/measured.py: what the device does while the caller learns, and at the end."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, ClassVar

import pytest

from tests.support.fake_device import InProcess
from tests.support.predicted_case import CASE, CONFIG, FITS, config
from tunefa.compile.pool import Pending
from tunefa.measure.measured import RUN_LIMIT_S, LostProcess
from tunefa.spec.trial import Config


class NeverReady(InProcess):
    """Its device takes for ever over each config."""

    limits_s: ClassVar[list[float]] = []

    def _submitted(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Future[Any]:
        self.limits_s.append(limit_s)
        future = Future[Any]()
        future.set_result(LostProcess("timeout", f"running took over {limit_s:.0f} s"))
        return future


def compiled(of: Config) -> Pending:
    future: Any = Future()
    future.set_result(("ok", FITS, 0.1, ""))
    return Pending(of, future)


def test_what_is_on_the_device_at_the_end_is_abandoned_a_hang_before_it_is_not() -> None:
    with NeverReady(CASE, 1) as objective:
        objective._pending.append(compiled(CONFIG))
        assert objective.next(wait_s=2.0) is None
        assert NeverReady.limits_s[-1] == pytest.approx(5.0, abs=0.5)
        objective._pending.append(compiled(CONFIG))
        trial = objective.next()
        assert trial is not None and trial.outcome == "timeout"
        assert NeverReady.limits_s[-1] == RUN_LIMIT_S


class Asked(InProcess):
    """Says what its device was asked to judge, and what it was waited for."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.begun: list[int] = []
        self.ended: list[int] = []

    def _submitted(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Future[Any]:
        if method == "judge":
            self.begun.append(arguments[0].config["BLOCK_M"])
        return super()._submitted(method, arguments, limit_s)

    def _result(self, asked: Future[Any], limit_s: float) -> Any:
        self.ended.append(len(self.begun))
        return super()._result(asked, limit_s)


@pytest.mark.usefixtures("device")
def test_the_device_goes_on_while_the_caller_learns() -> None:
    """It has a second config before the first one has ended, and two more after that."""
    objective = Asked(CASE, 1)
    with objective:
        tiles = [16, 32, 64, 128]
        objective._pending.extend(map(compiled, map(config, tiles)))
        first = objective.next()
        assert first is not None and first.config == config(16)
        assert objective.begun == [16, 32, 64] and objective.ended == [2]
        assert objective.is_ready(0.0)
        rest = [objective.next() for _ in tiles[1:]]
        assert [each and each.config for each in rest] == [config(tile) for tile in tiles[1:]]
        assert objective.begun == tiles and not objective.is_ready(0.0)


@pytest.mark.usefixtures("device")
def test_what_runs_ahead_is_waited_for_before_a_race_and_at_the_end() -> None:
    """Its process may be lost, which only who waits for it finds out."""
    for settle in ("race", "exit", "settle"):
        objective = Asked(CASE, 1)
        with objective:
            objective._pending.extend(map(compiled, map(config, (16, 32, 64))))
            objective.next()
            if settle == "race":
                objective.race([], config(16))
            if settle == "settle":
                last = [objective.settle() for _ in range(3)]
                assert [each and each.config for each in last] == [config(32), config(64), None]
        assert objective.begun == [16, 32, 64]
        waited = {"race": 4, "settle": 3, "exit": 1}  # what nobody shares is just ended
        assert len(objective.ended) == waited[settle]
