"""tunefa/spec/known_case.py: what is left of a space's expressions gives the same answers."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.sample_space import TINY, written
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec import space as spaces
from tunefa.spec.expr import Expr
from tunefa.spec.kernel import Kernel
from tunefa.spec.known_case import FEW, Asked, KnownCase, Level
from tunefa.spec.workload import Workload

SM90 = archs.load("sm90")
WORKLOADS = [
    Workload.parse(text)
    for text in (
        "q1000_k3000_h32_kv8_d128_causal",
        "bwd_q1000_k3000_h32_kv8_d128_causal",
        "bwd_q1000_k3000_h32_kv8_d192_causal",
        "decode_b4_h32_kv8_k3000_d128",
        "decode_b4_h16_k3000_d576_dv512_mla",
        "decode_b4_h32_kv8_k3000_d128_page16_prefix",
        "prefill_b4_h32_kv8_q1000_k3000_d128_page16",
        "matmul_m1000_n512_k512",
        "h8_q1000_k1000_d128_fp16_causal",
    )
]
OWN = [each for each in map(kernels.load, kernels.names()) if not each.is_library]
CASE = KnownCase(
    {"n": 4, "text": "x"},
    {"double": Expr("2 * n"), "size": Expr("BLOCK * double")},
    {"n is 4": Expr("n == 4"), "too large": Expr("size < 300"), "odd": Expr("BLOCK % 2 == 0")},
    {"rows": Expr("BLOCK"), "part": Expr("size // double"), "four": Expr("n")},
)


def test_what_reads_no_parameter_is_computed_once() -> None:
    folded = CASE.folded
    assert folded.known == {"n": 4, "text": "x", "double": 8}
    assert {name: each.source for name, each in folded.derived.items()} == {"size": "BLOCK * 8"}
    assert list(folded.rules) == ["too large", "odd"], "a rule that always holds is left out"
    assert folded.tilings["part"].source == "size // 8"


@pytest.mark.parametrize("case", [CASE, CASE.folded], ids=["as written", "folded"])
def test_both_give_the_same_answers(case: KnownCase) -> None:
    env = case.env({"BLOCK": 16})
    assert (env["double"], env["size"], case.refusal(env)) == (8, 128, None)
    assert case.tiling(env) == {"rows": 16, "part": 16, "four": 4}
    assert case.refusal(case.env({"BLOCK": 64})) == "too large"
    assert case.refusal(case.env({"BLOCK": 7})) == "odd"


@pytest.mark.parametrize("case", [CASE, CASE.folded], ids=["as written", "folded"])
def test_each_rule_counts_what_it_is_the_first_to_refuse(case: KnownCase) -> None:
    first = Level("BLOCK", (7, 16, 32, 64), ["double", "size"], ["n is 4", "too large", "odd"])
    found, refused = case.walk([first, Level("USE_TMA", (0, 1), [], [])])
    assert found == [{"BLOCK": block, "USE_TMA": n} for block in (16, 32) for n in (0, 1)]
    assert refused == {"too large": 2, "odd": 2}


def test_a_walk_finds_what_asking_each_config_finds() -> None:
    """Rules read parameters themselves and by definitions, the last one or some before it."""
    values = {"A": (1, 2, 3), "B": (1, 2), "C": (1, 2, 3), "D": (0, 1), "E": (1, 2)}
    derived = {"far": Expr("A * n"), "near": Expr("far + C"), "last": Expr("near * E")}
    rules = {
        "A and C": Expr("near != 10"),
        "A alone, later": Expr("D == 0 or far < 12"),
        "all": Expr("last + B + D < 24"),
        "none": Expr("n == 4"),
    }
    case = KnownCase({"n": 4}, derived, rules, {})
    levels = [
        Level("A", values["A"], ["far"], ["none"]),
        Level("B", values["B"], [], []),
        Level("C", values["C"], ["near"], ["A and C"]),
        Level("D", values["D"], [], ["A alone, later"]),
        Level("E", values["E"], ["last"], ["all"]),
    ]
    order = ["none", "A and C", "A alone, later", "all"]
    right, refused = [], Counter[str]()
    for chosen in itertools.product(*values.values()):
        env = case.env(config := dict(zip(values, chosen, strict=True)))
        broken = [rule for rule in order if not rules[rule](env)]
        refused.update(broken[:1])
        right += [] if broken else [config]
    assert right and len(refused) == 3
    assert case.walk(levels) == case.folded.walk(levels) == (right, refused)
    assert case.walk([]) == ([{}], Counter())


def test_an_error_names_the_expression_as_it_was_written() -> None:
    parts = CASE.known, {"size": Expr("n // (BLOCK - n)", "file:3")}
    case = KnownCase(*parts, {"holds": Expr("size > text", "file:4")}, {"rows": Expr("log2(-n)")})
    said = [_errors(each) for each in (case, case.folded)]
    assert said[0] == said[1]
    assert said[0]["env"] == said[0]["walk"] and "file:3: in 'n // (BLOCK" in said[0]["env"]
    assert "file:4: in 'size > text'" in said[0]["refusal"]
    assert "'log2(-n)'" in said[0]["tiling"]


def _errors(case: KnownCase) -> dict[str, str]:
    """The messages of all questions whose answer is an error."""
    asked: dict[str, Callable[[], object]] = {
        "env": lambda: case.env({"BLOCK": 4}),
        "refusal": lambda: case.refusal(case.env({"BLOCK": 5})),
        "tiling": lambda: case.tiling(case.env({"BLOCK": 5})),
        "walk": lambda: case.walk([Level("BLOCK", (4,), ["size"], [])]),
    }
    said = {}
    for name, ask in asked.items():
        with pytest.raises(TunefaError) as caught:
            ask()
        said[name] = str(caught.value)
    return said


def test_a_case_is_folded_once_there_are_many_questions() -> None:
    workload, arch = object(), object()
    asked = Asked(workload, arch, CASE)
    assert asked.about(workload, arch) and not asked.about(object(), arch)
    assert [asked.case(1) for _ in range(FEW)] == [CASE] * FEW
    assert asked.case(1) is CASE.folded
    assert Asked(workload, arch, CASE).case(FEW + 1) is CASE.folded


@pytest.mark.parametrize("kernel", OWN, ids=lambda kernel: kernel.name)
def test_kernels_answer_alike_before_and_after(kernel: Kernel) -> None:
    arch = next(
        a for a in map(archs.load, ("sm90", "ascend910b1")) if a.vendor == kernel.space.vendor
    )
    workload = next(each for each in WORKLOADS if kernel.why_not(each, arch) is None)
    space, chance = kernel.space, random.Random(0)
    choices = [p.values for p in space.parameters]
    names = [p.name for p in space.parameters]
    configs = [dict(zip(names, map(chance.choice, choices), strict=True)) for _ in range(30)]
    configs.append(space.default(workload, arch))
    written = KnownCase(
        {**workload.env(), **arch.env()},
        {**space.define, **space.resources},
        space.rules,
        space.tiling_exprs,
    )
    for config in configs:
        env, less = written.env(config), written.folded.env(config)
        assert env == less
        assert written.refusal(env) == written.folded.refusal(less)
        if written.refusal(env) is None:
            assert written.tiling(env) == written.folded.tiling(less)


def test_a_space_that_was_asked_much_can_be_sent_to_another_process(tmp_path: Path) -> None:
    space, workload = spaces.read(written(tmp_path, TINY)), Workload.parse("q4096_d64")
    config = space.default(workload, SM90)
    before = [space.estimate(config, workload, SM90) for _ in range(2 * FEW)]
    copy = pickle.loads(pickle.dumps(space))
    assert "_asked" in vars(space) and "_asked" not in vars(copy)
    assert [copy.estimate(config, workload, SM90)] == before[:1] == before[-1:]
