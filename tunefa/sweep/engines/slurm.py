"""Workers as Slurm jobs, started by submitit: a job for each GPU.

The study and TUNEFA_HOME must lie on a disk that all nodes share, or the study in a database. Where
there is no Slurm, submitit runs the jobs as processes of this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunefa.compile.place import Place
from tunefa.errors import TunefaError
from tunefa.sweep import cores
from tunefa.sweep.engine import Ended, Task
from tunefa.sweep.plan import Plan
from tunefa.sweep.seat import Seat
from tunefa.sweep.study import errors, folder

NEEDS = "submitit>=1.5"
OPTIONS = "TUNEFA_SLURM"
"""The variable with more options of the jobs: `partition=gpu,account=me,cpus_per_task=16`."""
_LOOK_S = 0.2
_DAY_MINUTES = 1440


class Engine:
    """Submits jobs."""

    def __init__(self, task: Task, workers: int | None = None, hosts: int | None = None) -> None:
        """`hosts` is the number of jobs, 1 where it is None; `workers` is the number of processes
        that compile in each."""
        import submitit

        self._task, self._limit, self._count = task, workers, hosts or 1
        logs = folder() / "slurm"
        with errors(str(logs)):
            logs.mkdir(parents=True, exist_ok=True)
        self._executor = submitit.AutoExecutor(folder=str(logs))
        self._running: list[tuple[Seat, Any]] = []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Cancels all jobs."""
        for _seat, job in self._running:
            job.cancel()
        self._running.clear()

    def seats(self, plan: Plan, place: str, study: str) -> list[Seat]:
        """Returns a seat for each job. Raises TunefaError for options that are not valid."""
        given = os.environ.get(OPTIONS, "")
        options: dict[str, Any] = {"gpus_per_node": 1} if plan.measured else {}
        for part in filter(None, given.split(",")):
            name, equals, value = part.partition("=")
            if not equals:
                raise TunefaError(
                    f"{OPTIONS}={given!r} has no value for {name!r}: write it as in "
                    "partition=gpu,cpus_per_task=16"
                )
            key = name.strip()
            options[key if key == "cpus_per_task" else f"slurm_{key}"] = _number(value.strip())
        options = {"timeout_min": _DAY_MINUTES, **options}
        try:
            self._executor.update_parameters(name="tunefa-sweep", **options)
        except (NameError, TypeError, ValueError) as error:
            raise TunefaError(
                f"submitit refuses an option of {OPTIONS}={given!r}: {error}"
            ) from error
        names = [f"job {number}" for number in range(1, self._count + 1)]
        return [Seat(place, study, name, measured=plan.measured) for name in names]

    def start(self, seat: Seat) -> None:
        """Submits a job. It runs where this process runs: with the same folder and variables."""
        job = self._executor.submit(worked, self._task, seat, self._limit, str(Path.cwd()))
        self._running.append((seat, job))

    def ended(self, wait_s: float) -> Sequence[Ended]:
        """Returns the jobs that have ended."""
        until = time.monotonic() + wait_s
        while not (done := [each for each in self._running if each[1].done()]):
            if time.monotonic() >= until:
                return []
            time.sleep(min(_LOOK_S, wait_s))
        self._running = [each for each in self._running if each not in done]
        return [_end(seat, job) for seat, job in done]


def worked(task: Task, seat: Seat, limit: int | None, where: str) -> tuple[bool, str] | None:
    """Runs in a job: works with the cores that the job has. Returns what a user can correct."""
    number = "0" if seat.measured and cores.are_ours() else ""
    share = cores.of_gpu(number, 1, limit)
    Place(cores=share.own).enter()
    os.chdir(where)
    try:
        task(replace(seat, share=share))
    except TunefaError as error:
        return True, str(error)
    return None


def _end(seat: Seat, job: Any) -> Ended:
    error = job.exception()
    if error is not None:
        return Ended(seat, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    said = job.result()
    return Ended(seat) if said is None else Ended(seat, said[1], is_users=said[0])


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text
