"""tunefa/runtime/few_queries.py: plans of new numbers of keys are those that are made anew."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.hopper_on_cpu import hopper
from tunefa.compile.launch.steps import Steps
from tunefa.runtime import few_queries
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.few_queries import FewQueriesPlan
from tunefa.runtime.resized_cache import ResizedCachePlan

CUDA = "attention_decode_cuda_sm90"


def tensors(batch: int, rows: int, keys: int, layout: str = "bshd", more: int = 0) -> Tensors:
    """Eight query heads and two KV heads; the keys may be a part of a larger cache."""
    kind = torch.bfloat16
    q = torch.empty(batch, rows, 8, 128, dtype=kind)
    k, v = (torch.empty(batch, keys + more, 2, 128, dtype=kind)[:, :keys] for _ in range(2))
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return Tensors(q, k, v)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("causal", [True, False])
def test_plans_are_those_that_are_made_anew(
    monkeypatch: pytest.MonkeyPatch, anew: list[Any], causal: bool, layout: str
) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    options, chance, resized = Options(causal, layout=layout), random.Random(3), 0
    for _ in range(150):
        batch, keys = chance.randint(1, 8), chance.randint(1024, 2000)
        given = tensors(batch, chance.choice([1, 2, 4]), keys, layout, chance.choice([0, 48]))
        quick = runtime.plan(given, options)
        slow = runtime.planner._of_few_queries(given, options, runtime_target(runtime))
        assert isinstance(quick, FewQueriesPlan) and slow is not None
        assert quick.chosen == slow.chosen and quick.layout == slow.layout
        mine: Any = quick.over_cache
        other: Any = slow.over_cache
        if isinstance(mine, ResizedCachePlan):
            resized += 1
            mine = mine.own
        assert isinstance(mine.launches.launch, Steps)
        assert mine.launches.launch.key == other.launches.launch.key
        assert (mine.options, mine.rows_contiguous) == (other.options, other.rows_contiguous)
    assert resized == 150 - 3
    assert len(anew) == 150 + 3, "one for each number of queries, beside those compared with"


def runtime_target(runtime: Any) -> Any:
    ((chip, _),) = runtime.planner.devices.values()
    return chip.target


def test_a_call_runs_the_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, cuda = hopper(monkeypatch, CUDA)
    for keys in (1100, 1101):
        given = tensors(2, 1, keys)
        plan = runtime.plan(given, Options())
        out, lse = plan.run(given, None)
        assert out.shape == (2, 1, 8, 128) and lse.shape == (2, 8, 1)
    assert len(cuda.started) == 4
    plan.run(given, 0.5)
    assert len(cuda.started) == 6


def test_what_rules_refuse_is_planned_anew(
    monkeypatch: pytest.MonkeyPatch, anew: list[Any]
) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    runtime.plan(tensors(2, 1, 1100), Options())
    (family,) = (each.value for each in runtime.planner._few._values.values())
    object.__setattr__(family, "runs", lambda env: env["seqlen_k"] != 1101)
    runtime.plan(tensors(2, 1, 1102), Options())
    assert len(anew) == 1
    runtime.plan(tensors(2, 1, 1101), Options())
    assert len(anew) == 2


def test_lengths_are_shared_and_beyond_every_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, other = (
        few_queries.with_lengths(tensors(batch, 1, 1100)).seqlens for batch in (2, 2, 3)
    )
    assert first is second and first is not other
    assert first.tolist() == [few_queries.MOST_KEYS] * 2 and first.dtype == torch.int32


def test_records_that_are_loaded_count(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    runtime.plan(tensors(2, 1, 1100), Options())
    assert len(runtime.planner._few) == 1
    runtime.leave_out_libraries()
    assert len(runtime.planner._few) == 0
