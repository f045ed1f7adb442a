"""Worker processes, for tasks that may crash, hang or leave a device unusable.

A worker is a new Python process, not a fork of this one, so it does not inherit a CUDA context. It
imports no main module, so scripts need no guard. It ends when it exceeds its limits and when this
process dies; `tunefa.compile.worker_process` says how.

A thread of this process belongs to each worker: it starts the worker, gives it tasks and ends it.
The system reports the death of the thread that has started a process, so the thread must live as
long as the worker.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import queue
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, TimeoutError
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from tunefa.compile.place import Place
from tunefa.compile.worker_handle import ProcessLost, Stopped, TaskRaised, WorkerHandle

__all__ = ["Later", "ProcessLost", "TaskRaised", "Workers"]

_Result = TypeVar("_Result")
_LATER_S = 0.2
"""A task that cannot be done yet is begun again after so long. Each time takes some ms."""


@dataclass(frozen=True)
class Later:
    """The result of a task that cannot be done yet, so that its worker does others meanwhile."""

    instead: Callable[..., Any] | None = None
    """The task that is done with the same arguments if that lasts for longer than its limit."""


class Workers:
    """A pool of up to `count` processes, which are started when needed."""

    def __init__(
        self, count: int, memory_bytes: int | None = None, lasting: bool = True,
        place: Place | None = None,
    ) -> None:  # fmt: skip
        """`memory_bytes` is the resident memory that a worker may hold, together with the processes
        that it starts; None stands for no limit. Workers that are not `lasting` may be renewed to
        stop what they do. `place` is where they run; None stands for where this process runs.
        `apart` then says whether they have cores of their own."""
        self.count, self.lasting = count, lasting
        self.apart = place is not None and bool(place.cores)
        self.ran_s: defaultdict[str, float] = defaultdict(float)  # tasks' times
        self.begun: dict[Any, Future[Any]] = {}  # what is asked for later, by a key of its asker
        self._start = functools.partial(
            WorkerHandle, memory_bytes=memory_bytes, place=place or Place()
        )
        self._lock = threading.Lock()  # nothing is submitted to a crew that ends
        self._crew = _Crew(self.ran_s)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(
        self, task: Callable[..., _Result | Later], arguments: tuple[Any, ...], limit_s: float,
        rank: int = 0,
    ) -> Future[_Result]:  # fmt: skip
        """Starts `task`, a function of a module, with a limit in seconds. Tasks of a lower `rank`
        are begun before others. One that returns Later is begun again after a moment, see there.

        The future raises TimeoutError if the limit is exceeded, ProcessLost if the worker died,
        TunefaError if the task raised one, and TaskRaised if it raised anything else. Raises
        RuntimeError after `stop`.
        """
        future: Future[_Result] = Future()
        with _delayed_ctrl_c(), self._lock:
            if (crew := self._crew).stopped:
                raise RuntimeError("the workers were stopped")
            crew.put(job := _Job(task, arguments, limit_s, future, rank))
            crew.unfinished[future] = job
            future.add_done_callback(crew.unfinished.pop)
            if not crew.idle.acquire(blocking=False) and len(crew.threads) < self.count:
                thread = threading.Thread(target=_work, args=(crew, self._start), daemon=True)
                thread.start()
                crew.threads.append(thread)
        return future

    def hurry(self, future: Future[Any]) -> None:
        """Lets the task of a future that `submit` returned have the rank 0, also if it is one that
        is begun again."""
        self._crew.hurry(future)

    def stop(self) -> None:
        """Ends all workers at once, and the processes that they wait for."""
        with _delayed_ctrl_c():
            with self._lock:
                self._crew.stopped = True
            self._crew.stop()

    def renew(self) -> None:
        """Ends all workers. The next task starts new ones, also while these end."""
        with _delayed_ctrl_c():
            with self._lock:
                ending, self._crew = self._crew, _Crew(self.ran_s)
            ending.stop()


@dataclass(eq=False)
class _Job:
    """A task, and the future that gets its result."""

    task: Callable[..., Any]
    arguments: tuple[Any, ...]
    limit_s: float
    future: Future[Any]
    rank: int
    since: float | None = None
    """The `time.monotonic` at which it could not be done for the first time."""

    def begin(self) -> bool:
        """Returns whether it is to be done; it may have been begun before."""
        return self.future.running() or self.future.set_running_or_notify_cancel()

    def put_off(self, later: Later) -> None:
        """Notes that it cannot be done yet."""
        self.since = time.monotonic() if self.since is None else self.since
        if later.instead is not None and time.monotonic() - self.since > self.limit_s:
            self.task = later.instead

    def cancel(self) -> None:
        """Ends it without a result."""
        if not self.future.cancel():
            self.future.set_exception(CancelledError())


@dataclass
class _Crew:
    """The threads of a pool, and what they share."""

    ran_s: defaultdict[str, float]
    jobs: queue.PriorityQueue[Any] = field(default_factory=queue.PriorityQueue)
    unfinished: dict[Future[Any], _Job] = field(default_factory=dict)
    """The jobs without a result, of which some may be begun again."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    threads: list[threading.Thread] = field(default_factory=list)
    idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stopped: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # nothing is added again to a crew that ends
        # Once the writer is closed, the reader is ready for every thread that waits for it.
        self.stop_reader, self._stop_writer = Pipe(duplex=False)

    def put(self, job: _Job | None) -> None:
        """Adds a job; None ends a thread."""
        self.jobs.put((0 if job is None else job.rank, next(self.numbers), job))

    def hurry(self, future: Future[Any]) -> None:
        """Gives a job the rank 0, also one that will be added again."""
        if (hurried := self.unfinished.get(future)) is None:
            return
        with self.jobs.mutex:
            hurried.rank, held = 0, self.jobs.queue
            for place, (_, number, job) in enumerate(held):
                if job is hurried:
                    held[place] = 0, number, job
                    heapq.heapify(held)
                    return

    def put_later(self, job: _Job) -> None:
        """Adds a job again after a moment."""

        def again() -> None:
            with self._lock:
                if not self.stopped:
                    self.idle.acquire(blocking=False)  # the thread that takes it is idle no more
                    self.put(job)
                    return
            job.cancel()

        timer = threading.Timer(_LATER_S, again)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # the system has no thread left, and the job must not be lost
            again()

    def next(self) -> _Job | None:
        """Returns the next job; None when the crew was stopped."""
        try:
            job: _Job | None = self.jobs.get_nowait()[-1]
        except queue.Empty:
            self.idle.release()
            job = self.jobs.get()[-1]
        if not self.stopped:
            return job
        if job is not None:
            job.cancel()
        return None

    def stop(self) -> None:
        """Ends all threads with their workers, and cancels the jobs that no worker has begun."""
        with self._lock:
            self.stopped = True
        self._stop_writer.close()
        for _ in self.threads:
            self.put(None)
        for thread in self.threads:
            thread.join()
        with contextlib.suppress(queue.Empty):
            while True:
                if (job := self.jobs.get_nowait()[-1]) is not None:
                    job.cancel()


def _work(crew: _Crew, start: Callable[[Connection], WorkerHandle]) -> None:
    """The thread of one worker, which is replaced when it is lost."""
    with contextlib.ExitStack() as stack:
        process: WorkerHandle | None = None
        while (job := crew.next()) is not None:
            if not job.begin():
                continue
            begun = time.monotonic()
            try:
                if process is None:
                    process = stack.enter_context(start(crew.stop_reader))
                result = process.run(job.task, job.arguments, job.limit_s)
            except (TimeoutError, ProcessLost, Stopped) as error:
                stack.close()
                process = None
                job.future.set_exception(CancelledError() if type(error) is Stopped else error)
            except Exception as error:  # of the task, or of pickling it
                job.future.set_exception(error)
            else:
                if isinstance(result, Later):
                    job.put_off(result)
                    crew.put_later(job)
                else:
                    job.future.set_result(result)
            crew.ran_s[getattr(job.task, "__name__", "")] += time.monotonic() - begun


@contextlib.contextmanager
def _delayed_ctrl_c() -> Iterator[None]:
    """Delays Ctrl-C until the end of the context: half of a change to the pool would be none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    missed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: missed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if missed:
        raise KeyboardInterrupt
