"""tunefa/measure/timing.py: what a call costs in each mode. Real calls: tests/gpu."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from tunefa.measure import timing
from tunefa.spec.trial import Mode


@pytest.mark.parametrize(
    ("mode", "device_us", "host_us", "latency_us"),
    [
        ("eager", 100.0, 30.0, 100.0),
        ("eager", 20.0, 30.0, 30.0),
        ("graph", 100.0, 30.0, 100.0),
        ("graph", 20.0, 30.0, 20.0),
        ("step", 20.0, 30.0, 20.0),
    ],
)
def test_the_host_counts_where_it_launches(
    mode: Mode, device_us: float, host_us: float, latency_us: float
) -> None:
    assert timing.latency_us(mode, device_us, host_us) == latency_us


@pytest.mark.parametrize(
    ("alone_us", "device_us", "added_us"), [(7.5, 12.0, 4.5), (7.5, 7.6, 0.5), (7.5, 7.0, 0.5)]
)
def test_a_launch_in_a_step_costs_what_it_adds(
    alone_us: float, device_us: float, added_us: float
) -> None:
    replay = timing.Replay(None)
    assert timing.added_us(replay, device_us, alone_us) == pytest.approx(added_us)
    assert timing.added_us(lambda: None, device_us, alone_us) == device_us


def test_the_host_is_timed_call_by_call() -> None:
    calls = [lambda: time.sleep(0.002), lambda: time.sleep(0.01)]
    (quick, quick_host), (slow, slow_host) = timing.HostStopwatch().times_us(calls)
    assert (quick, slow) == (quick_host, slow_host)
    assert 2_000 < quick < slow and 10_000 < slow < 100_000


class Clock:
    """torch.cuda, whose kernels move a clock in place of working, after the host has sent them."""

    def __init__(self) -> None:
        self.us = 0.0
        self.host_us = 0.0
        self.call_us = 0.0
        """The host's time for each call."""
        self.pause_us = 0.0
        """The host's time more for the first replay after it has waited."""
        self.has_replayed = False
        self.capturing: list[float] | None = None

    def run(self, us: float) -> None:
        """A kernel, or the record of an event."""
        if self.capturing is None:
            self.host_us += self.call_us
            self.us = max(self.us, self.host_us) + us
        else:
            self.capturing.append(us)

    def synchronize(self) -> None:
        self.host_us, self.has_replayed = self.us, False

    def replay(self, us: float) -> None:
        """A graph."""
        self.host_us += 0.0 if self.has_replayed else self.pause_us
        self.has_replayed = True
        self.run(us)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A device on which the start of a graph takes 6 us, filling the L2 60 and a small kernel 1."""
    made = Clock()

    class Graph:
        def replay(self) -> None:
            made.replay(6.0 + sum(self.kernels))

        kernels: list[float]

    @contextlib.contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        made.capturing = graph.kernels = []
        yield
        made.capturing = None

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            made.run(0.0)
            self.us = made.us

        def elapsed_time(self, end: Event) -> float:
            return (end.us - self.us) / 1e3

    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "CUDAGraph": Graph, "graph": capture, "Event": Event, "Stream": lambda: stream,
        "stream": lambda _: contextlib.nullcontext(), "current_stream": lambda: stream,
        "synchronize": made.synchronize,
    }  # fmt: skip
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(**fakes))
    plain = torch.empty, torch.zeros
    monkeypatch.setattr(torch, "empty", lambda n, dtype, device: plain[0](64, dtype=dtype))
    monkeypatch.setattr(torch, "zeros", lambda n, device: plain[1](n))
    monkeypatch.setattr(timing._Neighbours, "fill_cache", lambda self: made.run(60.0))
    monkeypatch.setattr(timing.Stopwatch, "_fill_cache", lambda self: made.run(60.0))
    monkeypatch.setattr(timing._Neighbours, "_kernel", lambda self: made.run(1.0))
    return made


def test_only_mode_graph_counts_the_start_of_the_graph(clock: Clock) -> None:
    for mode, expected_us in (("graph", 11.0), ("step", 5.0)):
        watch = timing.Stopwatch(mode)  # type: ignore[arg-type]
        launch = watch.prepared(lambda: clock.run(5.0))
        assert isinstance(launch, timing.Replay) is (mode == "step")
        found = watch.times_us([launch] * 3)
        assert [us for us, _ in found] == pytest.approx([expected_us] * 3)


def test_what_is_not_captured_counts_whole_in_a_step(clock: Clock) -> None:
    watch = timing.Stopwatch("step")
    inside, outside = watch.prepared(lambda: clock.run(5.0)), lambda: clock.run(5.0)
    assert [us for us, _ in watch.times_us([inside, outside])] == pytest.approx([5.0, 5.0])


def test_a_step_without_a_launch_is_timed_again_and_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks that fall count for both."""
    watch = timing.Stopwatch("step")
    launch = watch.prepared(lambda: clock.run(5.0))
    watch.times_us([launch])
    run = clock.run
    monkeypatch.setattr(clock, "run", lambda us: run(2 * us))
    for _ in range(timing._EMPTY_SAMPLES):
        ((us, _),) = watch.times_us([launch])
    assert us == pytest.approx(10.0)


@pytest.mark.parametrize(("mode", "pause_us"), [("graph", 200.0), ("step", 280.0)])
def test_the_first_launch_does_not_wait_for_the_host(
    clock: Clock, mode: Mode, pause_us: float
) -> None:
    """In each round of a race the host begins with an idle device, and its caches are cold."""
    watch = timing.Stopwatch(mode)
    launch = watch.prepared(lambda: clock.run(5.0))
    expected_us = watch.once_us([launch])[0]
    for _ in range(timing._EMPTY_SAMPLES):
        clock.pause_us, clock.call_us = pause_us, 15.0  # filling the cache takes 60
        assert watch.once_us([launch, launch]) == pytest.approx([expected_us] * 2)
