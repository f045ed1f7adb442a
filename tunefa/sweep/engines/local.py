"""Workers on this machine: a process for each GPU; for predictions, one for every two cores.

The processes end with this one, however it ends (`tunefa.compile.worker_process`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import CancelledError, Future

from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.compile.place import Place
from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.errors import TunefaError
from tunefa.spec.target import Target
from tunefa.sweep import cores, start, store_lock
from tunefa.sweep.engine import Ended, Task
from tunefa.sweep.plan import Plan
from tunefa.sweep.seat import Seat

_LIMIT_S = 1e6
"""For a worker: eleven days. A sweep has a budget of its own."""
_BEGIN_LIMIT_S = 60.0
_CORES_EACH = 2
"""The cores of a worker that predicts: one compiles while the other checks."""


class Engine:
    """Starts processes on this machine."""

    def __init__(self, task: Task, workers: int | None = None) -> None:
        """`workers` is the most processes that compile in all; None stands for all cores."""
        self._task, self._limit = task, workers
        self._running: dict[Future[str | None], tuple[Seat, Workers]] = {}
        self._begun: dict[str, Workers] = {}  # by seat: processes without work yet

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all processes."""
        for workers in (*self._begun.values(), *(each for _, each in self._running.values())):
            workers.stop()
        self._begun.clear()
        self._running.clear()

    def begin(self, plan: Plan) -> None:
        """Starts the processes that measure a plan, which load PyTorch and compilers while this one
        loads modules and makes the study. A sweep that runs on this store is not disturbed. Raises
        TunefaError if there is no GPU."""
        if not plan.measured or store_lock.is_taken():
            return
        for seat in self.seats(plan, "", ""):
            self._begun[seat.name] = workers = self._process(seat)
            workers.submit(start.begin, (seat,), _BEGIN_LIMIT_S)

    def seats(self, plan: Plan, place: str, study: str) -> list[Seat]:
        """Returns a seat for each GPU that the plan measures on, else for every two cores."""
        there = cores.available()
        if plan.measured:
            chosen = gpus(plan)
            names = [f"GPU {visible}" for visible, _ in chosen]
            variables = [{"CUDA_VISIBLE_DEVICES": visible} for visible, _ in chosen]
        else:
            most = max(1, (self._limit or len(there)) // _CORES_EACH)
            count = min(most, len(plan.weights) * len(plan.targets))
            names = [f"worker {number}" for number in range(1, count + 1)]
            variables = [{} for _ in names]
        shares = cores.shares(len(names), there, plan.measured, self._limit)
        places = zip(names, shares, variables, strict=True)
        return [Seat(place, study, *each, plan.measured) for each in places]

    def start(self, seat: Seat) -> None:
        """Starts a process, unless one was begun for the seat."""
        workers = self._begun.pop(seat.name, None) or self._process(seat)
        self._running[workers.submit(self._task, (seat,), _LIMIT_S)] = seat, workers

    def _process(self, seat: Seat) -> Workers:
        return Workers(1, place=Place(seat.environment, seat.share.own))

    def ended(self, wait_s: float) -> Sequence[Ended]:
        """Returns the workers that have ended."""
        done, _ = futures.wait(self._running, wait_s, futures.FIRST_COMPLETED)
        found = []
        for future in done:
            seat, workers = self._running.pop(future)
            workers.stop()
            found.append(_end(seat, future))
        return found


def _end(seat: Seat, future: Future[str | None]) -> Ended:
    try:
        future.result()
    except TunefaError as error:
        return Ended(seat, str(error), is_users=True)
    except ProcessLost as error:
        return Ended(seat, f"its process {error}")
    except (TaskRaised, CancelledError) as error:
        return Ended(seat, str(error) or "it was stopped")
    return Ended(seat)


def gpus(plan: Plan) -> list[tuple[str, SeenDevice]]:
    """Returns the GPUs of this machine that a plan measures on, each with the value of
    CUDA_VISIBLE_DEVICES that shows it alone.

    Raises TunefaError if there are none.
    """
    seen = driver.devices()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = [str(i) for i in range(len(seen))] if given is None else given.split(",")
    found = list(zip((each.strip() for each in visible), seen, strict=False))
    if not found:
        raise TunefaError(
            "this machine has no GPU to measure on: name chips to predict for, such as "
            "--arch sm80,sm90"
        )
    names = [Target.seen(each.name, each.compute_capability, each.sms).device.name for each in seen]
    if plan.device is None:
        return found
    chosen = [pair for pair, name in zip(found, names, strict=False) if name == plan.device]
    if not chosen:
        raise TunefaError(
            f"no GPU of this machine is a {plan.device}; there are: {', '.join(names)}: name one "
            "of these with --device, or leave it out"
        )
    return chosen
