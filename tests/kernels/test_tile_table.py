"""Which program works on which tile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tunefa import arch as archs
from tunefa import kernel as kernels
from tunefa.workload import Workload

KERNEL = kernels.load("attention_fwd_gluon_sm90")
SMS = 132


@pytest.fixture(scope="module")
def schedule() -> Callable[[Workload, dict[str, Any], int], list[list[int]]]:
    made: Callable[[Workload, dict[str, Any], int], list[list[int]]]
    made = KERNEL.module.tile_table.schedule
    return made


def _config(workload: Workload) -> dict[str, Any]:
    return KERNEL.default(workload, archs.load("sm90"))


@pytest.mark.parametrize(
    "text",
    [
        *("q1_k1", "q8192", "b4_h16_q4096_full", "b32_h16_q512", "h6_kv2_q700_k900", "h2_q999_k77"),
        *("h2_q999_k77_a20", "h6_q700_k900_full_w30", "b3_q3000_w100_a300_softcap"),
        *("b2_h24_kv2_q9_k700", "b3_h32_kv8_q40_k99_full", "h12_kv2_q20_k20"),
    ],
)
def test_every_tile_is_somebodys_once(text: str, schedule: Any) -> None:
    workload = Workload.parse(text)
    config = _config(workload)
    tiles = -(-workload.seqlen_q * config["PACK_HEADS"] // (64 * config["WARPGROUPS"]))
    lists = schedule(workload, config, SMS)
    everything = sorted(tile for program in lists for tile in program)
    packs = workload.batch * workload.heads // config["PACK_HEADS"]
    assert everything == list(range(tiles * packs))
    assert len(lists) <= SMS and all(lists)


def test_causal_programs_end_together(schedule: Any) -> None:
    workload = Workload.parse("b4_h16_q4096_causal")
    config = _config(workload)
    rows = 64 * config["WARPGROUPS"]
    tiles = -(-workload.seqlen_q // rows)
    work = [
        sum(0.5 + (tile % tiles + 1) * rows / config["BLOCK_N"] for tile in program)
        for program in schedule(workload, config, SMS)
    ]
    longest = tiles * rows / config["BLOCK_N"]
    assert max(work) - min(work) <= longest / 4
    assert max(work) <= 1.03 * sum(work) / SMS


def test_full_programs_have_as_many_tiles_on_the_fewest_sms(schedule: Any) -> None:
    workload = Workload.parse("b1_h9_q2048_full")
    config = {**_config(workload), "WARPGROUPS": 2}
    lists = schedule(workload, config, SMS)  # 144 tiles: two rounds need 72 programs
    assert {len(program) for program in lists} == {2} and len(lists) == 72


@pytest.mark.parametrize(
    "text", ["q999_w100", "q999_full_w100", "q999_k700_a90", "q700_k999_w40_a300", "q300_k90_a7"]
)
def test_a_tile_costs_the_blocks_that_its_rows_see(text: str) -> None:
    workload = Workload.parse(text)
    config = {**_config(workload), "WARPGROUPS": 2, "BLOCK_N": 64}
    diagonal = workload.seqlen_k - workload.seqlen_q
    left, right = (workload.seqlen_q + workload.seqlen_k if x is None else x for x in workload.band)
    for tile in range(-(-workload.seqlen_q // 128)):
        last = min(128 * (tile + 1), workload.seqlen_q) - 1
        keys = range(
            max(0, 128 * tile + diagonal - left),
            min(workload.seqlen_k, last + diagonal + right + 1),
        )
        seen = len({key // 64 for key in keys})
        cost = KERNEL.module.tile_table._tile_cost(workload, config, 128, tile)
        assert cost == 0.5 + max(1, seen), (tile, seen)


@pytest.mark.parametrize(
    ("text", "packed"),
    [("h32_kv4_q1_k999", 8), ("h12_kv2_q5_k9", 2), ("h12_kv1_q63", 4), ("h9_kv3_q1", 1),
     ("h32_kv4_q64", 1)],
)  # fmt: skip
def test_few_queries_share_a_tile_by_default(text: str, packed: int) -> None:
    assert _config(Workload.parse(text))["PACK_HEADS"] == packed


@pytest.mark.parametrize("text", ["b2_h24_kv2_q9_k70", "b3_h32_kv8_q40_k99_full", "h12_kv2_q20"])
def test_packs_hold_every_row_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload.parse(text)
    config = _config(workload)
    packed = config["PACK_HEADS"]
    assert packed > 1
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=SMS)
    )
    ends, table = KERNEL.module.tile_table.tables(workload, config, "cpu")
    assert ends[-1] == len(table) - 1
    held = set()
    for batch, head, head_kv, first in table[:-1].tolist():
        for offset, row in itertools.product(range(packed), range(first, first + 64 // packed)):
            assert (head + offset) // workload.group == head_kv
            assert (batch, head + offset, row) not in held
            held.add((batch, head + offset, row))
    sizes = (workload.batch, workload.heads, workload.seqlen_q)
    assert held >= set(itertools.product(*map(range, sizes)))
