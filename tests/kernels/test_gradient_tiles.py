"""The table of tiles for persistent CTAs of the two-pass Hopper backward."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import pytest

from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_two_pass_gluon_sm90")
assert KERNEL.module is not None  # now its modules can be imported
HOST: Any = importlib.import_module("tunefa.kernels.gluon.host.gradient_tiles")
PASSES: list[Any] = [KERNEL.module.key_gradients, KERNEL.module.query_gradients]
SMS = 132


def costs_of(host: Any, text: str) -> list[int]:
    case = Case(KERNEL, Workload.parse(f"bwd_{text}"), Target.named("sm90"))
    made: list[int] = host._costs(case.workload, case.default())
    return made


@pytest.mark.parametrize("host", PASSES)
@pytest.mark.parametrize("text", ["b4_h16_q4096_d128_causal", "b2_h6_kv3_q1000_k3000_d64_causal"])
def test_every_tile_has_one_cta(host: Any, text: str) -> None:
    costs = costs_of(host, text)
    table = HOST.table(costs, SMS, "cpu").tolist()
    ends = table[: SMS + 1]
    assert (ends[0], ends[-1]) == (SMS + 1, len(table) - 1)
    assert sorted(table[SMS + 1 : -1]) == list(range(len(costs)))
    assert ends == sorted(ends)


@pytest.mark.parametrize("host", PASSES)
@pytest.mark.parametrize("text", ["b4_h16_q4096_d128_causal", "b16_h16_q1024_d128_causal"])
def test_ctas_are_busy_for_equally_long(host: Any, text: str) -> None:
    costs = costs_of(host, text)
    table = HOST.table(costs, SMS, "cpu").tolist()
    busy = [sum(costs[i] for i in table[a:b]) for a, b in pairwise(table[: SMS + 1])]
    assert max(busy) <= 1.06 * sum(costs) / SMS


@pytest.mark.parametrize("host", PASSES)
def test_equal_tiles_go_to_ctas_in_turn(host: Any) -> None:
    costs = costs_of(host, "b2_h8_q2048_d128_full")
    table = HOST.table(costs, SMS, "cpu").tolist()
    for cta in range(SMS):
        assert table[table[cta] : table[cta + 1]] == list(range(cta, len(costs), SMS))
