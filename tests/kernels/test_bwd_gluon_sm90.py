"""The Hopper backward in Gluon, as far as no device is needed: which CTA visits which rows and
keys, what the rules refuse, and what the compiler says of its configs."""

from __future__ import annotations

import importlib
import random
import re
from collections import Counter
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from tunefa.compile.languages import gluon
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_gluon_sm90")
MODULE = KERNEL.module
SM90 = Target.named("sm90")


class Number(int):
    """An integer whose division goes towards 0, as the device's does."""

    def __floordiv__(self, other: int) -> Number:
        quotient = abs(int(self)) // int(other)
        return Number(quotient if self >= 0 else -quotient)

    def __add__(self, other: int) -> Number:
        return Number(int(self) + int(other))

    def __sub__(self, other: int) -> Number:
        return Number(int(self) - int(other))

    def __mul__(self, other: int) -> Number:
        return Number(int(self) * int(other))


def case_of(text: str) -> Case:
    return Case(KERNEL, Workload.parse(f"bwd_{text}"), SM90)


def some_config(case: Case, chance: random.Random) -> dict[str, Any]:
    """A feasible config by chance."""
    while True:
        parameters = case.kernel.space.parameters
        config = {each.name: chance.choice(each.values) for each in parameters}
        if case.refusal(config) is None:
            return config


class OnHost:
    """The kernel's own functions of class Backward, on whole numbers in place of the device's."""

    def __init__(self, workload: Workload, config: dict[str, Any], cta: int) -> None:
        module = importlib.import_module("tunefa.kernels.gluon.backward")
        constants = MODULE._constants(workload, config)
        ctas = workload.batch * workload.heads_kv * -(-workload.seqlen_k // MODULE._keys(config))
        self.gl = SimpleNamespace(
            minimum=lambda *x: Number(min(x)), maximum=lambda *x: Number(max(x)),
            where=lambda holds, a, b: a if holds else b, constexpr=None,
            program_id=lambda axis: Number(cta), num_programs=lambda axis: Number(ctas),
        )  # fmt: skip
        self._functions, self._namespace = module.Backward, vars(module)
        sizes = dict.fromkeys(("heads", "heads_kv", "seqlen_q", "seqlen_k"), 0)
        sizes = {name: Number(getattr(workload, name)) for name in sizes}
        section, rows = config["L2_SECTION_HEADS"], MODULE._rows(workload, config)
        values = sizes | {"rows": Number(rows), "section_heads": Number(section)}
        self.__dict__ |= values | constants
        self.ctas = ctas

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._functions, name).fn
        fields = ("batch", "head_kv", "key", "row", "units", "masked", "shift")
        names = {
            "gl": self.gl,
            "Tile": lambda *x: SimpleNamespace(**dict(zip(fields, map(Number, x), strict=True))),
        }
        function = FunctionType(made.__code__, {**self._namespace, **names})
        return lambda *arguments: function(self, *arguments)

    def units(self, tile: Any) -> list[tuple[int, int, bool]]:
        """(query head of the group, unit, whether it is masked), as the consumer's loops go."""
        found = [(0, unit, bool(self.MASKED)) for unit in range(self.PEELED)]
        first = self.PEELED
        for member in range(self.group()):
            if self.MASK_LOOP:
                found += [(member, unit, True) for unit in range(first, tile.masked)]
                first = max(first, tile.masked)
            found += [(member, unit, False) for unit in range(first, tile.units)]
            first = 0
        return found


def shapes(chance: random.Random) -> str:
    """A workload with lengths around the sizes of blocks."""
    lengths = [1, 17, 62, 63, 64, 65, 66, 126, 127, 128, 129, 130, 200, 256, 384, 500]
    q, k = chance.choice(lengths), chance.choice(lengths)
    heads, heads_kv = chance.choice([(2, 2), (3, 3), (4, 2), (6, 1)])
    d, mask = chance.choice([64, 128]), chance.choice(["causal", "full"])
    return f"b{chance.randint(1, 2)}_h{heads}_kv{heads_kv}_q{q}_k{k}_d{d}_{mask}"


@pytest.mark.parametrize("seed", range(150))
def test_every_visible_pair_is_met_once_and_masked_where_it_must(seed: int) -> None:
    chance = random.Random(seed)
    case = case_of(shapes(chance))
    w, config = case.workload, some_config(case, chance)
    offset, keys = w.seqlen_k - w.seqlen_q, MODULE._keys(config)
    met: Counter[tuple[int, ...]] = Counter()  # by (batch, head, first key of a tile, row)
    ctas = OnHost(w, config, 0).ctas
    for cta in range(ctas):
        b = OnHost(w, config, cta)
        tile = b.tile()
        assert 0 <= tile.key < w.seqlen_k and tile.units >= b.PEELED
        visits = b.units(tile)
        assert len({visit[:2] for visit in visits}) == len(visits) == b.group() * tile.units
        for member, unit, masked in visits:
            first = b.row(tile, Number(unit))
            before = b.rows_before(tile, Number(member))
            head = tile.head_kv * w.group + member
            assert before == (tile.batch * w.heads + head) * b.rows
            assert first >= 0 and first + b.UNIT <= b.rows and first % 64 == 0
            for row in range(first, min(first + b.UNIT, w.seqlen_q)):
                last = min(row + offset, w.seqlen_k - 1) if w.causal else w.seqlen_k - 1
                assert masked or last >= tile.key + keys - 1
                met[tile.batch, head, tile.key, row] += 1
    assert set(met.values()) <= {1}
    for batch, head, key in _tiles(w, keys):
        for row in range(w.seqlen_q):
            sees = not w.causal or key <= row + offset
            assert not sees or (batch, head, key, row) in met


def _tiles(w: Workload, keys: int) -> list[tuple[int, int, int]]:
    return [
        (batch, head, key)
        for batch in range(w.batch)
        for head in range(w.heads)
        for key in range(0, w.seqlen_k, keys)
    ]


def test_causal_tiles_with_most_rows_start_first() -> None:
    case = case_of("b2_h8_q512_d128_causal")
    config = {**case.default(), "L2_SECTION_HEADS": 4}
    tiles = [OnHost(case.workload, config, cta).tile() for cta in range(64)]
    for section in range(0, 64, 16):
        units = [tile.units for tile in tiles[section : section + 16]]
        assert units == sorted(units, reverse=True)
        heads = {(tile.batch, tile.head_kv) for tile in tiles[section : section + 16]}
        assert len(heads) == 4


# --------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        ("d64_full", {"DQ_SPLIT": 2}, "DQ_SPLIT 2 needs 64 query rows for each"),
        ("d64_full", {"BLOCK_M": 128}, "need a BLOCK_M of 64"),
        ("d64_full", {"WARPGROUPS": 1, "DQ_SPLIT": 0}, "one warpgroup computes all of dQ"),
        ("d128_full", {"WARPGROUPS": 1, "DQ_SPLIT": 1}, "one warpgroup needs head dim"),
        ("d128_full", {"KV_IN_REGISTERS": 1}, "KV_IN_REGISTERS needs head dimensions"),
        ("d128_causal", {"STAGGER": 1}, "STAGGER needs a full mask"),
        ("d128_full", {"L2_SECTION_HEADS": 4}, "needs a causal mask"),
        ("d128_full", {"Q_STAGES": 3}, "shared memory of a CTA"),
        ("d128_full", {"PREFETCH_S": 1}, "the accumulator of dQ must leave"),
        ("d128_causal", {"DQ_SPLIT": 1, "DS_STAGES": 2}, "the accumulator of dQ must leave"),
    ],
)
def test_what_cannot_work_is_refused(text: str, changes: dict[str, int], reason: str) -> None:
    case = case_of(text + "_q4096")
    assert case.refusal(case.default()) is None
    assert reason in (case.refusal({**case.default(), **changes}) or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("d128_causal_deterministic", "no fixed order"),
        ("d256_causal", "up to 128"),
        ("d64_dv32_full", "one head dimension"),
        ("d128_causal_w100", "sliding windows"),
        ("d128_causal_softcap", "soft-capped"),
        ("d128_causal_varlen", "packed sequences"),
        ("d128_fp32_causal", "bf16 and fp16 only"),
        ("d100_causal", "multiples of 8"),
    ],
)
def test_what_it_does_not_serve_is_left_to_other_kernels(text: str, reason: str) -> None:
    assert reason in (case_of(text + "_q4096").why_not() or "")


def test_only_dq_is_added_up_in_no_fixed_order() -> None:
    case = case_of("q4096_d128")
    assert MODULE.unordered(case.workload, case.default()) == ("dq",)


# ------------------------------------------------------------------------------------ compiling

COMPILED = [
    "h16_q4096_d128_full",
    "h32_q4096_d64_causal",
    "h16_kv4_q4096_d128_causal",
    "h16_kv4_q1000_k3990_d64_full_fp16",
    "h16_q1000_k3990_d96_causal",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", COMPILED)
def test_configs_compile_into_the_memory_that_is_computed(text: str) -> None:
    """The default and another; a spill of a few registers costs less than smaller tiles do."""
    case = case_of(text)
    for config in (case.default(), some_config(case, random.Random(text))):
        compiled = gluon.compile(case, config)
        assert compiled.preprocess is not None and compiled.postprocess is not None
        loops = compiled.binary.asm["ttgir"]
        # A Gluon variable that is a constant before a loop stays one: only the first query head
        # of a group must begin with its second unit.
        assert case.workload.group == 1 or not re.search(r"scf\.for %\S+ = %c1_i32", loops)
        made, expected = compiled.resources, case.estimate(config)
        assert made.smem_bytes == expected["smem_bytes"], config
        assert made.registers == expected["registers"], config
        assert made.spill_bytes is not None and made.spill_bytes <= 400, config
