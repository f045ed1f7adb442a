"""Races calls as CUDA graphs: a graph runs one of them on several caches in turn."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

ROUNDS = 9
LEAST_CALLS, LEAST_BYTES = 8, 16e9
"""Calls of a graph, unless fewer read so many bytes: its own start is little beside them."""
HEAD_START_CYCLES = 200_000
"""Clocks that the device waits before each replay, while the host launches the graph."""
Call = Callable[[int], Any]
_ALONE = ""
"""The name of the layer without a call."""
_WIDTH, _WEIGHTS = 4096, 8
"""The columns of a weight of the layer, and the weights, 256 MiB together, that take turns."""


class Layer:
    """The kernels of a layer beside attention: the product behind it, and one that writes the next
    queries. As a call, it runs both; the number is that of the next call of attention."""

    def __init__(self, queries: Sequence[torch.Tensor]) -> None:
        """Makes the weights; `queries` (batch, heads, seqlen_q, head_dim) are those of caches."""
        like = {"device": queries[0].device, "dtype": torch.bfloat16}
        self._queries = queries
        self._rows = torch.randn(queries[0].shape[0], _WIDTH, **like)  # type: ignore[call-overload]
        self._weights = torch.randn(_WEIGHTS, _WIDTH, _WIDTH, **like)  # type: ignore[call-overload]

    def __call__(self, number: int) -> None:
        """Leaves the queries as they are."""
        torch.mm(self._rows, self._weights[number % _WEIGHTS])
        self._queries[number % len(self._queries)].mul_(1.0)


def calls_of_graph(caches: int, bytes_of_call: float) -> int:
    """Returns how many calls a graph has: one for each cache, or more."""
    return max(caches, min(LEAST_CALLS, math.ceil(LEAST_BYTES / bytes_of_call)))


def in_turn(
    call: Call, caches: int, calls: int, layer: Call | None = None
) -> list[tuple[Call, int]]:
    """Returns so many calls with their numbers: those of one cache after the other, again and
    again. The layer, if there is one, comes before each of them, with the number of the call."""
    made: list[tuple[Call, int]] = []
    for number in range(calls):
        made += [] if layer is None else [(layer, number)]
        made.append((call, number % caches))
    return made


def captured(
    call: Call, caches: int, calls: int, layer: Call | None = None
) -> torch.cuda.CUDAGraph:
    """A graph of what `in_turn` returns."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run, number in in_turn(call, caches, caches, layer):
            run(number)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run, number in in_turn(call, caches, calls, layer):
            run(number)
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
    makers: Mapping[str, Callable[[], Call]],
    caches: int,
    calls_of_each: int | None = None,
    layer: Call | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the us of each call, and why others failed. A maker returns a call, which has the
    number of a cache. Graphs have `calls_of_each` calls, or one for each cache. With a layer, the
    us are what calls add to a graph of layers."""
    in_graph = calls_of_each or caches
    calls, graphs, failed = {}, {}, {}
    for name, maker in makers.items():
        try:
            calls[name] = maker()  # a graph reads the tensors that its call holds
            graphs[name] = captured(calls[name], caches, in_graph, layer)
        except Exception as error:  # a peer that is not installed, or refuses
            if name == "tunefa":
                raise
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            torch.cuda.synchronize()
    if layer is not None:
        graphs[_ALONE] = captured(layer, caches, in_graph)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS + 1):
        shuffled = list(graphs.items())
        random.Random(turn).shuffle(shuffled)
        for name, graph in shuffled:
            found = replay_us(graph) / in_graph
            if turn:  # the first one warms up
                times[name].append(found)
    medians = {name: statistics.median(each) for name, each in times.items()}
    beside = medians.pop(_ALONE, 0.0)
    return {name: round(each - beside, 2) for name, each in medians.items()}, failed
