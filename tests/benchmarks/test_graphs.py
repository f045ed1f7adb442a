"""The number of calls in a graph of the benchmarks."""

from __future__ import annotations

import pytest
import torch

from benchmarks import graphs
from benchmarks.graphs import Call, calls_of_graph


@pytest.mark.parametrize(
    ("caches", "bytes_of_call", "wanted"),
    [(500, 2e6, 500), (12, 0.27e9, 12), (3, 1.1e9, 8), (1, 8.6e9, 2), (1, 69e9, 1)],
)
def test_each_cache_is_called_and_long_calls_are_few(
    caches: int, bytes_of_call: float, wanted: int
) -> None:
    assert calls_of_graph(caches, bytes_of_call) == wanted


def test_a_layer_comes_before_each_call() -> None:
    def call(number: int) -> None: ...
    def layer(number: int) -> None: ...

    assert graphs.in_turn(call, 2, 3) == [(call, 0), (call, 1), (call, 0)]
    both = [(layer, 0), (call, 0), (layer, 1), (call, 1), (layer, 2), (call, 0)]
    assert graphs.in_turn(call, 2, 3, layer) == both


def test_a_layer_leaves_queries_as_they_are() -> None:
    queries = [torch.randn(2, 4, 1, 8) for _ in range(2)]
    before = [each.clone() for each in queries]
    layer = graphs.Layer(queries)
    layer(3)
    assert all(map(torch.equal, queries, before))


def test_in_a_layer_a_call_costs_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph is the functions that it runs; each of them takes its time on the CPU."""
    ran: list[tuple[str, int]] = []

    def runs(name: str) -> Call:
        return lambda number: ran.append((name, number))

    def captured(call: Call, caches: int, calls: int, layer: Call | None = None) -> list[Call]:
        return [call] if layer is None else [layer, call]

    def replay_us(graph: list[Call]) -> float:
        ran.clear()
        for each in graph:
            each(0)
        return 4 * sum({"layer": 9.0, "ours": 5.0, "theirs": 7.0}[name] for name, _ in ran)

    monkeypatch.setattr(graphs, "captured", captured)
    monkeypatch.setattr(graphs, "replay_us", replay_us)
    makers = {name: lambda name=name: runs(name) for name in ("ours", "theirs")}
    alone, _ = graphs.raced(makers, 2, 4)
    inside, failed = graphs.raced(makers, 2, 4, runs("layer"))
    assert alone == inside == {"ours": 5.0, "theirs": 7.0} and not failed
