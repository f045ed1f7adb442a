"""tunefa/runtime/cache_plans.py: the plans that are kept, and what wrong calls are told."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.cache_families import CacheCalls
from tests.support.hopper_on_cpu import hopper
from tunefa.errors import TunefaError
from tunefa.runtime.cache_family import CacheFamily
from tunefa.runtime.decode_call import CacheOptions
from tunefa.runtime.resized_cache import ResizedCachePlan

CUDA = "attention_decode_cuda_sm90"
CALLS = CacheCalls(page_size=16)
OPTIONS = CALLS.options


def test_a_call_that_was_seen_finds_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    chance = random.Random(1)
    given = [CALLS.call(chance) for _ in range(5)]
    made = [runtime.caches.plan(each, OPTIONS, None) for each in given]
    assert [isinstance(each, ResizedCachePlan) for each in made] == [False] + [True] * 4
    assert [runtime.caches.plan(each, OPTIONS, None) for each in given] == made
    assert len(runtime.caches.plans) == 5 and len(runtime.caches._families) == 1
    runtime.leave_out_libraries()
    assert len(runtime.caches.plans) == len(runtime.caches._families) == 0


def test_a_given_output_is_another_family(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    given = CALLS.call(random.Random(1))
    for out in (None, torch.empty_like(given.q)):
        runtime.caches.plan(given, OPTIONS, out)
    assert len(runtime.caches._families) == 2


def test_what_rules_refuse_is_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    chance = random.Random(1)
    runtime.caches.plan(CALLS.call(chance), OPTIONS, None)
    (family,) = (each.value for each in runtime.caches._families._values.values())
    assert isinstance(family, CacheFamily)
    object.__setattr__(family, "runs", lambda env: False)
    plan = runtime.caches.plan(CALLS.call(chance), OPTIONS, None)
    assert not isinstance(plan, ResizedCachePlan)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "q": ({"q": torch.empty(3, 8, 128, dtype=torch.bfloat16)}, "q"),
    "lengths": ({"seqlens": torch.ones(1, dtype=torch.int32)}, "seqlens"),
    "types of lengths": ({"seqlens": torch.ones(3)}, "seqlens"),
    "table": ({"block_table": torch.zeros(2, 3, dtype=torch.int32)}, "block_table"),
    "a list": ({"seqlens": [1, 2, 3]}, "seqlens"),
    "heads": ({"v": torch.empty(9, 16, 3, 128, dtype=torch.bfloat16)}, "heads"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_told_where_a_family_is_known(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    chance = random.Random(1)
    for _ in range(3):
        runtime.caches.plan(CALLS.call(chance), OPTIONS, None)
    changes, said = WRONG[name]
    with pytest.raises(TunefaError, match=said):
        runtime.caches.plan(CALLS.call(chance)._replace(**changes), OPTIONS, None)


@pytest.mark.parametrize(
    "out", [torch.empty(1), torch.empty(4, 1, 8, 128), [1]], ids=["shape", "dtype", "list"]
)
def test_wrong_outputs_are_told(monkeypatch: pytest.MonkeyPatch, out: Any) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    with pytest.raises(TunefaError, match="out is"):
        runtime.caches.plan(CALLS.call(random.Random(1)), OPTIONS, out)


def test_scales_that_no_kernel_takes_are_computed_in_pytorch() -> None:
    from tunefa.runtime.process import Runtime

    runtime = Runtime()
    given = CALLS.call(random.Random(1))
    plan, scale = runtime.caches.decode(given, CacheOptions(), -0.5, None)
    assert scale == -0.5 and plan.chosen.kernel == "pytorch"
    with pytest.raises(TunefaError, match="scale"):
        runtime.caches.decode(given, CacheOptions(), float("nan"), None)
