"""The tile that each program works on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.launch_specs import Kept, spec_of
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

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
    tiles = -(-workload.seqlen_q * config["PACK_GQA"] // (64 * config["WARPGROUPS"]))
    lists = schedule(workload, config, SMS)
    everything = sorted(tile for program in lists for tile in program)
    packs = workload.batch * workload.heads // config["PACK_GQA"]
    assert everything == list(range(tiles * packs))
    assert len(lists) <= SMS and all(lists)


def _longest(workload: Workload, config: dict[str, Any], schedule: Any) -> int:
    """Key blocks of the program with most, where each tile has one program."""
    rows, block_n = 64 * int(config["WARPGROUPS"]), int(config["BLOCK_N"])
    tiles = -(-workload.seqlen_q // rows)

    def blocks(tile: int) -> int:
        return -(-min((tile % tiles + 1) * rows, workload.seqlen_q) // block_n)

    longest: int = max(sum(map(blocks, program)) for program in schedule(workload, config, SMS))
    return longest


@pytest.mark.parametrize("name", ["attention_fwd_gluon_sm90", "attention_fwd_cuda_sm90"])
def test_sections_grow_where_programs_would_not_end_together(name: str, schedule: Any) -> None:
    workload = Workload.parse("b2_h10_q3000_d128_causal")
    kernel = kernels.load(name)
    config = {**kernel.default(workload, archs.load("sm90")), "L2_SECTION_MB": 4}
    config |= {"CLUSTER_SIZE": 1} if "CLUSTER_SIZE" in config else {}
    specialized = kernel.module.specialize(workload, config, SMS)
    assert list(specialized) == ["L2_SECTION_MB"]
    before = _longest(workload, config, schedule)
    assert _longest(workload, {**config, **specialized}, schedule) < before / 1.03
    for mb in (4, 8, 16, 32):
        other = _longest(workload, {**config, "L2_SECTION_MB": mb}, schedule)
        assert other > 0.97 * _longest(workload, {**config, **specialized}, schedule)
    assert kernel.module.specialize(workload, {**config, **specialized}, SMS) == {}


def test_sections_of_clusters_grow_as_well() -> None:
    """Measured on an H200: 121 us with 8 MiB, 110 with 32 (and taking turns)."""
    kernel, workload = (
        kernels.load("attention_fwd_cuda_sm90"),
        Workload.parse("b1_h40_q2500_d128_causal"),
    )
    config = kernel.default(workload, archs.load("sm90"))
    assert (config["CLUSTER_SIZE"], config["L2_SECTION_MB"]) == (2, 8)
    assert kernel.module.specialize(workload, config, SMS) == {"L2_SECTION_MB": 32}


@pytest.mark.parametrize(
    "text", ["b2_h10_q3000_d128_full", "b8_h32_q8192_d128", "b2_h10_q3000_d128_varlen"]
)
def test_sections_stay_where_they_decide_nothing(text: str) -> None:
    """All tiles alike, so many that programs end together, or drawn from a list."""
    workload = Workload.parse(text)
    config = {**_config(workload), "L2_SECTION_MB": 4}
    assert KERNEL.module.specialize(workload, config, SMS) == {}


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
    assert _config(Workload.parse(text))["PACK_GQA"] == packed


@pytest.mark.parametrize("text", ["b2_h24_kv2_q9_k70", "b3_h32_kv8_q40_k99_full", "h12_kv2_q20"])
def test_packs_hold_every_row_once(text: str) -> None:
    workload = Workload.parse(text)
    config = _config(workload)
    packed = config["PACK_GQA"]
    assert packed > 1
    spec = spec_of(KERNEL, workload, config, sms=SMS)
    ends, table = KERNEL.module.tile_table.tables(spec, "cpu")
    assert ends[-1] == len(table) - 1
    held = set()
    for batch, head, head_kv, first in table[:-1].tolist():
        for offset, row in itertools.product(range(packed), range(first, first + 64 // packed)):
            assert (head + offset) // workload.group == head_kv
            assert (batch, head + offset, row) not in held
            held.add((batch, head + offset, row))
    sizes = (workload.batch, workload.heads, workload.seqlen_q)
    assert held >= set(itertools.product(*map(range, sizes)))


# ---------------------------------------------------------------- one list, clusters of programs


CUDA = kernels.load("attention_fwd_cuda_sm90")


def _clustered(text: str) -> tuple[Workload, dict[str, Any]]:
    workload = Workload.parse(text)
    return workload, {**CUDA.default(workload, archs.load("sm90")), "CLUSTER_SIZE": 2}


def _programs(workload: Workload, config: dict[str, Any], sms: int) -> list[list[list[int]]]:
    """The rows of each program's part of the table."""
    ends, table = KERNEL.module.tile_table.tables(spec_of(CUDA, workload, config, sms=sms), "cpu")
    assert len(table) == ends[-1] + 1
    return [table[a:b].tolist() for a, b in itertools.pairwise(ends.tolist())]


@pytest.mark.parametrize("sms", [132, 7])
@pytest.mark.parametrize(
    "text",
    [
        *("b4_h16_q4096", "b4_h16_q4096_full", "b3_h6_kv2_q700_k900", "b3_h6_kv2_q700_k900_full"),
        # Odd counts: of tiles of a head, of heads of a group, of both.
        *(
            "b2_h3_q1300",
            "h3_q1300_full",
            "b2_h12_kv4_q1000",
            "b2_h9_kv3_q1300",
            "h5_kv1_q1300_full",
        ),
        *("b8_h64_kv8_q2048", "h2_q999_k77", "h1_q130_d64"),
    ],
)
def test_programs_of_a_cluster_share_keys(text: str, sms: int) -> None:
    workload, config = _clustered(text)
    programs, rows = _programs(workload, config, sms), 64 * config["WARPGROUPS"]
    assert len(programs) % 2 == 0 and len(programs) <= sms and all(programs)
    seen, missing = set(), set()
    for first, second in zip(programs[::2], programs[1::2], strict=True):
        for ours, theirs in zip(first, second, strict=True):
            batch, head, head_kv, row = ours
            assert [batch, head_kv] == [theirs[0], theirs[2]]
            assert head_kv == head // workload.group == theirs[1] // workload.group
            # The second sees as many keys as the first or, a tile further down, some more.
            assert row < workload.seqlen_q and theirs[3] - row in (0, rows)
        for batch, head, head_kv, row in first + second:
            if row >= workload.seqlen_q:
                assert (batch, head_kv) not in missing
                missing.add((batch, head_kv))
            else:
                assert (batch, head, row) not in seen
                seen.add((batch, head, row))
    assert seen == set(
        itertools.product(
            range(workload.batch), range(workload.heads), range(0, workload.seqlen_q, rows)
        )
    )
    odd = workload.group * -(-workload.seqlen_q // rows) % 2
    assert len(missing) == odd * workload.batch * workload.heads_kv


def test_causal_clusters_end_together() -> None:
    workload, config = _clustered("b4_h16_q4096")
    rows = 64 * config["WARPGROUPS"]
    pairs = -(-workload.seqlen_q // rows) // 2
    lists = KERNEL.module.tile_table.schedule(workload, config, SMS)
    assert len(lists) == SMS and lists[0::2] == [[tile - 1 for tile in x] for x in lists[1::2]]
    work = [
        sum(0.5 + (tile // 2 % pairs + 1) * 2 * rows / config["BLOCK_N"] for tile in program)
        for program in lists[::2]
    ]
    assert max(work) <= 1.03 * sum(work) / len(work)


def test_equal_keys_are_of_equal_tables() -> None:
    """Launches with equal keys share their tables."""
    tables, chance = KERNEL.module.tile_table, random.Random(0)
    found: dict[Any, list[list[int]]] = {}
    shared = 0
    for _ in range(1500):
        rows = chance.choice([chance.randint(1, 8), chance.randint(600, 700), 1000])
        keys = chance.choice([rows, rows + chance.randint(0, 300), chance.randint(200, 900)])
        mask = chance.choice(["", "_full", "_w100", "_full_w64_a9"])
        workload = Workload.parse(f"b2_h8_kv2_q{rows}_k{keys}_d128{mask}")
        config = _config(workload)
        sms = chance.choice([7, 132])
        made = tables.schedule(workload, config, sms)
        key = tables._key(workload, config, sms)
        shared += key in found
        assert found.setdefault(key, made) == made, workload
    assert shared > 300


def test_launches_share_tables_where_something_keeps_them() -> None:
    kept, made = Kept(), []
    for text in ("q1_k500_d128", "q1_k501_d128", "q99_k501_d128", "b2_q1_k501_d128"):
        workload = Workload.parse(text)
        spec = replace(spec_of(KERNEL, workload, _config(workload)), tables=kept)
        made.append(KERNEL.module.tile_table.tables(spec, "cpu"))
    assert made[0] is made[1] and len(kept.made) == 3


@pytest.mark.parametrize("text", ["b1_h40_q2500_d128", "b4_h16_q3000_d128", "h8_q700_k9000_d128"])
@pytest.mark.parametrize("sms", [20, 132])
def test_sections_are_specialized_by_the_busiest_program(text: str, sms: int) -> None:
    workload = Workload.parse(text)
    config, tables = _config(workload), KERNEL.module.tile_table
    longest = {
        mb: max(tables._shares(workload, {**config, "L2_SECTION_MB": mb}, sms)[1])
        for mb in (8, 16, 32)
    }
    best = min(longest, key=lambda mb: longest[mb])
    changes = {} if longest[8] <= 1.03 * longest[best] else {"L2_SECTION_MB": best}
    assert tables.specialize(workload, {**config, "L2_SECTION_MB": 8}, sms) == changes
