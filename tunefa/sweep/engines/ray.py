"""Workers in a Ray cluster: an actor for each GPU, on any number of hosts.

Ray starts an actor again elsewhere when its process or its node is lost. The study must lie where
every node reaches it: in a file on a shared disk, or in a database.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
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

NEEDS = "ray>=2.40"
_CORES_EACH = 2
"""The cores of a worker that predicts."""
_RESTARTS = 3
_LOOK_S = 5.0


class Engine:
    """Starts actors in the cluster that RAY_ADDRESS names, or in the one of this machine."""

    def __init__(self, task: Task, workers: int | None = None) -> None:
        """`workers` is the number of processes that compile on each host; None for all cores."""
        import ray

        self._ray: Any = ray
        self._task, self._limit = task, workers
        self._running: dict[Any, tuple[Seat, Any]] = {}
        self._needs: dict[str, int] = {}
        self._printing = contextlib.ExitStack()

    def __enter__(self) -> Engine:
        """Connects to the cluster. Until its end, what is printed goes to stderr: Ray prints which
        workers are lost, and stdout is for data."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            self._connect()
            self._printing = stack.pop_all()
        return self

    def _connect(self) -> None:
        if not self._ray.is_initialized():
            try:
                _look(os.environ.get("RAY_ADDRESS", ""))
                self._ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
            except OSError as error:  # ConnectionError is one
                raise TunefaError(
                    f"no Ray cluster can be reached ({error}): start one with ray start --head, or "
                    "name one by RAY_ADDRESS"
                ) from error

    def __exit__(self, *_: object) -> None:
        with self._printing:
            self.stop()

    def stop(self) -> None:
        """Ends all actors."""
        for _seat, actor in self._running.values():
            self._ray.kill(actor)
        self._running.clear()

    def seats(self, plan: Plan, place: str, study: str) -> list[Seat]:
        """Returns a seat for each GPU of the cluster, or for every two cores of it."""
        there = self._ray.cluster_resources()
        name = "GPU" if plan.measured else "CPU"
        each = 1 if plan.measured else _CORES_EACH
        self._needs = {"num_gpus": 1, "num_cpus": 0} if plan.measured else {"num_cpus": each}
        count = int(there.get(name, 0)) // each
        if not count:
            raise TunefaError(
                f"the Ray cluster has {there.get(name, 0):g} {name}s, and a worker needs {each}: "
                "add nodes, or name chips to predict for with --arch"
            )
        if not plan.measured:
            count = min(count, len(plan.weights) * len(plan.targets))
        names = [f"{name} {number} of Ray" for number in range(1, count + 1)]
        return [Seat(place, study, each, measured=plan.measured) for each in names]

    def start(self, seat: Seat) -> None:
        """Starts an actor."""
        kind = self._ray.remote(**self._needs, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)
        actor = kind(_Actor).remote()
        self._running[actor.work.remote(self._task, seat, self._limit)] = seat, actor

    def ended(self, wait_s: float) -> Sequence[Ended]:
        """Returns the actors that have ended."""
        done, _ = self._ray.wait(list(self._running), timeout=wait_s)
        found = []
        for reference in done:
            seat, actor = self._running.pop(reference)
            found.append(self._end(seat, reference))
            self._ray.kill(actor)
        return found

    def _end(self, seat: Seat, reference: Any) -> Ended:
        errors = self._ray.exceptions
        try:
            self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            return Ended(seat, str(cause), is_users=isinstance(cause, TunefaError))
        except errors.RayError as error:
            return Ended(seat, (str(error).splitlines() or [type(error).__name__])[0])
        return Ended(seat)


class _Actor:
    """A worker in a process that Ray has started."""

    def work(self, task: Task, seat: Seat, limit: int | None) -> str | None:
        """Works with its part of the host's cores: that of the GPU that Ray has given it."""
        share = replace(seat.share, processes=max(1, limit or _CORES_EACH))
        if seat.measured:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            share = cores.of_gpu(visible, _gpus_here(), limit)
        Place(cores=share.own).enter()
        return task(replace(seat, share=share))


def _look(address: str) -> None:
    """Raises OSError if nothing answers at `host:port`; Ray itself waits for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), _LOOK_S).close()


def _gpus_here() -> int:
    """Returns how many GPUs this host has, of which CUDA shows this process one."""
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
