"""Hundreds of random gradients by every kernel that serves them, on the device."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support.random_problems import check_random
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
CASES = 300
"""Random workloads; each kernel computes those that it serves."""
HEAD_DIMS = (64, 128, 256, 40, 80, 96, 192)
"""Each is another binary, which takes seconds to compile."""


def workloads() -> Iterator[Workload]:
    """Always the same ones: all masks, head dimensions, groups and lengths that a call may have."""
    chance = random.Random(0)
    for _ in range(CASES):
        head_dim, heads_kv = chance.choice(HEAD_DIMS), chance.randint(1, 3)
        lengths = [chance.randint(1, chance.choice([40, 300, 700])) for _ in range(2)]
        if chance.random() < 0.5:
            lengths[1] = lengths[0]
        causal = chance.random() < 0.6
        yield Workload(
            op="bwd",
            batch=chance.randint(1, 3),
            heads=heads_kv * chance.choice([1, 1, 2, 4]),
            heads_kv=heads_kv,
            seqlen_q=lengths[0],
            seqlen_k=lengths[1],
            head_dim=head_dim,
            head_dim_v=head_dim if chance.random() < 0.9 else 64,
            dtype=chance.choice(["bf16", "bf16", "fp16"]),
            causal=causal,
            window_left=chance.choice([None, None, None, 50]),
            window_right=None if causal else chance.choice([None, None, 20]),
            softcap=chance.random() < 0.1,
            varlen=chance.random() < 0.2,
            deterministic=chance.random() < 0.2,
        )


def test_workloads_have_something_of_everything() -> None:
    every = list(workloads())
    assert len(every) == CASES
    for name in ("varlen", "deterministic", "softcap", "causal"):
        assert {getattr(each, name) for each in every} == {True, False}


OF_GRADIENTS = [name for name in kernels.names() if kernels.load(name).op == "bwd"]


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_random_problems_are_right(name: str) -> None:
    check_random(kernels.load(name), workloads())
