"""tunefa/runtime/cache_family.py: plans for other batches and caches are those that are made
anew, and nothing is prepared for them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.cache_families import CacheCalls, made_anew
from tests.support.hopper_on_cpu import hopper
from tunefa.compile.launch.steps import Steps
from tunefa.runtime.decode_call import CacheOptions
from tunefa.runtime.resized_cache import ResizedCachePlan

CUDA = "attention_decode_cuda_sm90"
PLAIN = CacheCalls()
FAMILIES = {
    "contiguous": PLAIN,
    "heads first": CacheCalls(options=CacheOptions(layout="bhsd")),
    "pages": CacheCalls(page_size=64, sinks=True),
    "e4m3 in pages": CacheCalls(page_size=16, e4m3=True),
    "e4m3": CacheCalls(e4m3=True),
    "window": CacheCalls(rows=3, options=CacheOptions(window_left=50, softcap=9.0)),
    "latent": CacheCalls(heads=16, heads_kv=1, head_dim=576, mla=True),
    "latent in pages": CacheCalls(heads=16, heads_kv=1, head_dim=576, mla=True, page_size=64),
}


def kernels_of(calls: CacheCalls) -> tuple[str, ...]:
    found = "attention_decode_mla_triton" if calls.mla else "attention_decode_triton"
    return found.replace("triton", "cuda_sm90"), found


@pytest.mark.parametrize("which", [0, 1], ids=["cuda", "triton"])
@pytest.mark.parametrize("name", FAMILIES)
def test_plans_are_those_that_are_made_anew(
    monkeypatch: pytest.MonkeyPatch, anew: list[Any], name: str, which: int
) -> None:
    calls, chance = FAMILIES[name], random.Random(3)
    runtime, _ = hopper(monkeypatch, kernels_of(calls)[which])
    quick = 0
    for _ in range(40):
        given = calls.call(chance)
        plan = runtime.caches.plan(given, calls.options, None)
        if not isinstance(plan, ResizedCachePlan):
            continue
        quick += 1
        slow = made_anew(runtime, given, calls.options)
        assert plan.chosen == slow.chosen
        own: Any = plan.own
        launches: Any = own.launches.launch, slow.launches.launch
        assert isinstance(launches[0], Steps) and launches[0].key == launches[1].key
        assert (own.options, own.rows_contiguous) == (slow.options, slow.rows_contiguous)
    assert quick == 39 and len(anew) == 40
