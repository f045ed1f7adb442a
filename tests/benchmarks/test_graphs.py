"""How many calls a graph of the benchmarks has."""

from __future__ import annotations

import pytest

from benchmarks.graphs import calls_of_graph


@pytest.mark.parametrize(
    ("caches", "bytes_of_call", "wanted"),
    [(500, 2e6, 500), (12, 0.27e9, 12), (3, 1.1e9, 8), (1, 8.6e9, 2), (1, 69e9, 1)],
)
def test_each_cache_is_called_and_long_calls_are_few(
    caches: int, bytes_of_call: float, wanted: int
) -> None:
    assert calls_of_graph(caches, bytes_of_call) == wanted
