"""Races calls as CUDA graphs: a graph runs one of them on several caches in turn."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

ROUNDS = 9
LEAST_CALLS, LEAST_BYTES = 8, 16e9
"""Calls of a graph, unless fewer read so many bytes: its own start is little beside them."""
HEAD_START_CYCLES = 200_000
"""Clocks that the device waits before each replay, while the host launches the graph."""
Call = Callable[[int], Any]


def calls_of_graph(caches: int, bytes_of_call: float) -> int:
    """Returns how many calls a graph has: one for each cache, or more."""
    return max(caches, min(LEAST_CALLS, math.ceil(LEAST_BYTES / bytes_of_call)))


def captured(call: Call, caches: int, calls: int) -> torch.cuda.CUDAGraph:
    """A graph of so many calls, on one cache after the other, again and again."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(caches):
            call(number)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(calls):
            call(number % caches)
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Device time of one replay, which begins when the host has launched it."""
    start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def raced(
    makers: Mapping[str, Callable[[], Call]], caches: int, calls_of_each: int | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the us of each call, and why others failed. A maker returns a call, which has the
    number of a cache. Graphs have `calls_of_each` calls, or one for each cache."""
    in_graph = calls_of_each or caches
    calls, graphs, failed = {}, {}, {}
    for name, maker in makers.items():
        try:
            calls[name] = maker()  # a graph reads the tensors that its call holds
            graphs[name] = captured(calls[name], caches, in_graph)
        except Exception as error:  # a peer that is not installed, or refuses
            if name == "tunefa":
                raise
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS + 1):
        in_turn = list(graphs.items())
        random.Random(turn).shuffle(in_turn)
        for name, graph in in_turn:
            found = replay_us(graph) / in_graph
            if turn:  # the first one warms up
                times[name].append(found)
    return {name: round(statistics.median(each), 2) for name, each in times.items()}, failed
