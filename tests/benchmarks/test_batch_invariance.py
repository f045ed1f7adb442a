"""benchmarks/batch_invariance.py: its points, its configs, and what a cost is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import tunefa
from benchmarks import batch_invariance, decode, decode_configs
from tunefa.measure import ops
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload


def test_points_have_all_pairs_of_heads_and_batches() -> None:
    points = batch_invariance.workloads()
    pairs = Counter((w.heads, w.heads_kv, w.batch) for w in points)
    assert len(points) == len(pairs) == len(decode.HEADS) * len(decode.BATCHES)
    assert {w.seqlen_k for w in points} == set(decode.KEYS)
    assert max(w.io_bytes for w in points) <= batch_invariance.MOST_BYTES


def test_every_config_serves_every_point() -> None:
    for text in batch_invariance.CONFIGS:
        for workload in batch_invariance.workloads():
            decode_configs.parsed(text).at(workload, Target.named("h200"))


def found(best: str, **us: float) -> dict[str, Any]:
    return {"workload": "decode_b4_h32_kv8_k1024", "best": best, "us": us}


def test_the_cost_is_that_of_the_second_race_and_not_below_zero() -> None:
    points = [found("tunefa", tunefa=9.0), found("a", tunefa=11.0, a=10.0),
              found("a", tunefa=9.0, a=10.0)]  # fmt: skip
    assert [round(batch_invariance.cost(each), 3) for each in points] == [0.0, 0.1, -0.1]
    *rows, _, last = batch_invariance.table(points).splitlines()
    assert rows[2] == "| 32/8 b4, 1,024 | 9.0 | 9.0 | the same | 0.0% |"
    assert rows[3] == "| 32/8 b4, 1,024 | 11.0 | 10.0 | a | 10.0% |"
    assert last == "3 points: the cost is 3.3% on average, 10.0% at most, and above 5 % at 1"


@pytest.mark.parametrize("first", [{"tunefa": 2.0, "other": 3.0}, {"tunefa": 2.0, "other": 1.0}])
def test_what_is_fastest_first_races_once_more(
    monkeypatch: pytest.MonkeyPatch, first: dict[str, float]
) -> None:
    races: list[list[str]] = []
    times = [first, {"tunefa": 2.0, "SPLIT_COST=16": 1.5}]
    config = decode_configs.parsed("SPLIT_COST=16")

    def raced(makers: Mapping[str, Callable[[], Any]], caches: int, calls: int) -> Any:
        assert calls >= caches
        races.append(list(makers))
        renamed = {str(config) if name == "other" else name: us for name, us in times[0].items()}
        times.pop(0)
        return renamed, {}

    made = ops.of(Workload.parse("decode_k8")).tensors
    monkeypatch.setattr(batch_invariance, "raced", raced)
    monkeypatch.setattr(decode, "MOST_CACHES", 2)
    workload = Workload.parse("decode_b2_h4_kv2_k40_d16")
    monkeypatch.setattr(ops.of(workload), "tensors", lambda w, device, seed: made(w, "cpu", seed))
    point = batch_invariance.point(workload, [config])
    assert races[0] == ["tunefa", "SPLIT_COST=16"] and point["kernel"] == "pytorch"
    if first["other"] < first["tunefa"]:
        assert races[1:] == [["tunefa", "SPLIT_COST=16"]] and batch_invariance.cost(point) > 0.3
    else:
        assert races[1:] == [] and point["us"] == {"tunefa": 2.0}


def test_pages_beside_a_contiguous_cache_are_its_own_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = Workload.parse("decode_b3_h4_kv2_q2_k32_d16")
    made = [ops.of(workload).tensors(workload, "cpu", 0)]
    calls: list[tuple[Any, ...]] = []
    whole = tunefa.decode_attention

    def noted(*given: Any, out: torch.Tensor) -> Any:
        calls.append(given)
        return whole(*given, out=out)

    monkeypatch.setattr(tunefa, "decode_attention", noted)
    decode.paged(8, made, workload)(0)
    [(_, k, v, lengths, table)] = calls
    assert k.shape == v.shape == (12, 8, 2, 16) and lengths.tolist() == [32] * 3
    assert (k.data_ptr(), v.data_ptr()) == (made[0][1].data_ptr(), made[0][2].data_ptr())
    assert sorted(table.flatten().tolist()) == list(range(12)) and table.shape == (3, 4)
    assert bool(made[0][3].isfinite().all())
    with pytest.raises(ValueError, match="no whole pages of 7"):
        decode.paged(7, made, workload)


def test_pages_are_no_peers() -> None:
    us = {"tunefa": 10.0, "page16": 12.5, "cudnn": 11.0}
    text = decode.tables([{"workload": "decode_b1_h32_kv8_k1024", "us": us}])
    assert "page16 over contiguous: 1 points, mean 0.800, least 0.800" in text
    assert "tunefa: 1 points, ahead at 1, mean 1.100" in text
