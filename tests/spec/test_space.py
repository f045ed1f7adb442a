"""tunefa/spec/space.py: what the rules leave of a space, and its defaults."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sample_space import TINY, written
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import space as spaces
from tunefa.spec.expr import Expr
from tunefa.spec.space import Parameter, Space
from tunefa.spec.workload import Workload

SM80, SM90 = archs.load("sm80"), archs.load("sm90")
WORKLOAD = Workload.parse("q4096_d64")


@pytest.fixture
def tiny(tmp_path: Path) -> Space:
    return spaces.read(written(tmp_path, TINY))


def product(space: Space) -> Iterator[dict[str, Any]]:
    names = [parameter.name for parameter in space.parameters]
    for values in itertools.product(*(parameter.values for parameter in space.parameters)):
        yield dict(zip(names, values, strict=True))


def test_every_part_of_a_file_is_read(tiny: Space, tmp_path: Path) -> None:
    assert (tiny.kernel, tiny.op, tiny.language) == ("tiny", "fwd", "triton")
    assert tiny.parameters == (
        Parameter("BLOCK", (16, 32, 64), "rows"),
        Parameter("num_stages", (1, 2), "buffers"),
    )
    assert list(tiny.rules) == ["too much shared memory", "one stage is for short blocks"]
    assert tiny.unaligned == {"BLOCK": 16}
    assert tiny.path == tmp_path / "tiny.yaml"


def test_unaligned_may_be_a_sentence_or_left_out(tmp_path: Path) -> None:
    sentence = "it reads whole 16 bytes"
    text = TINY.replace("{BLOCK: 16}", sentence, 1)
    assert spaces.read(written(tmp_path, text)).unaligned == sentence
    without = TINY.replace("unaligned: {BLOCK: 16}\n", "")
    assert spaces.read(written(tmp_path, without)).unaligned == {}


def test_what_only_a_device_tells_apart_stays_at_its_first_value(tmp_path: Path) -> None:
    text = TINY.replace("doc: buffers", "doc: buffers, timed_only: true")
    assert text != TINY
    space = spaces.read(written(tmp_path, text))
    found = space.untimed().feasible(WORKLOAD, SM90)
    assert {config["num_stages"] for config in found.configs} == {1} and found.total == 3
    assert space.feasible(WORKLOAD, SM90).total == 6


def test_a_space_can_be_sent_to_another_process(tiny: Space) -> None:
    copy = pickle.loads(pickle.dumps(tiny))
    assert copy.feasible(WORKLOAD, SM90) == tiny.feasible(WORKLOAD, SM90)


def _smaller(space: Space) -> Space:
    """The space with the first and the last value of each parameter."""
    few = [replace(each, values=(each.values[0], each.values[-1])) for each in space.parameters]
    whole = [
        one if len(one.values) == 1 else two for one, two in zip(space.parameters, few, strict=True)
    ]
    return replace(space, parameters=tuple(whole))


@pytest.mark.parametrize(
    ("workload", "arch"),
    [
        ("q8192", "sm90"),
        ("q1_k33_d80_h8_kv1", "sm100"),
        ("b2_h3_q100_k70_d256_fp32_full", "sm120"),
        ("q16_k16_h1_kv1_d16_dv72", "sm80"),
        ("matmul_m300_n40_k64", "sm90"),
    ],
)
def test_enumeration_is_brute_force(workload: str, arch: str) -> None:
    problem = Workload.parse(workload)
    for name in spaces.names():
        space = spaces.load(name).untimed()  # the rest of it only takes longer
        if space.op != problem.op:
            continue
        if math.prod(len(each.values) for each in space.parameters) > 10_000:
            space = _smaller(space)
        chip = archs.load(arch if space.vendor == "nvidia" else archs.names(space.vendor)[0])
        found = space.feasible(problem, chip)
        everything = list(product(space))
        right = [config for config in everything if space.refusal(config, problem, chip) is None]
        assert list(found.configs) == right
        assert [list(config) for config in found.configs] == [list(config) for config in right]
        assert found.total == len(right) + sum(found.refused.values()) == len(everything)
        assert list(found.refused) == list(space.rules)


# Rules, definitions and resources of the kind that files have, over two of three parameters each.
_TERMS = st.sampled_from(["A", "B", "C", "head_dim", "2", "x", "y"])
_RULE = st.builds("{} {} {}".format, _TERMS, st.sampled_from(["<=", "!=", ">"]), _TERMS)
_DEFINED = st.builds(
    "{} {} {}".format,
    st.sampled_from(["A", "B", "C", "head_dim"]),
    st.sampled_from(["+", "*", "-"]),
    st.sampled_from(["A", "B", "C", "3"]),
)
_VALUES = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)


@settings(deadline=None)
@given(
    values=st.tuples(_VALUES, _VALUES, _VALUES),
    defined=st.tuples(_DEFINED, _DEFINED),
    rules=st.lists(_RULE, max_size=4),
)
def test_enumeration_is_brute_force_in_any_space(
    values: tuple[list[int], ...], defined: tuple[str, str], rules: list[str]
) -> None:
    space = Space(
        kernel="any",
        op="fwd",
        language="triton",
        vendor="nvidia",
        priority=Expr("0"),
        priority_on={},
        parameters=tuple(
            Parameter(name, tuple(each), "") for name, each in zip("ABC", values, strict=True)
        ),
        serves={},
        define={"x": Expr(defined[0])},
        resources={"y": Expr(f"({defined[1]}) + x")},
        rules={f"rule {number}": Expr(rule) for number, rule in enumerate(rules)},
        shared_memory_exprs=(),
        tiling_exprs={},
        defaults=(),
        default_changes=(),
        unaligned={},
        path=Path("any.yaml"),
    )
    found = space.feasible(WORKLOAD, SM90)
    right = [c for c in product(space) if space.refusal(c, WORKLOAD, SM90) is None]
    assert list(found.configs) == right
    assert found.total == len(list(product(space)))


def test_refusals_are_counted_by_rule(tiny: Space) -> None:
    found = tiny.feasible(WORKLOAD, SM90)
    assert found.refused == {"too much shared memory": 0, "one stage is for short blocks": 1}
    assert len(found.configs) == 5 and found.total == 6


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"BLOCK": 64, "num_stages": 2}, None),
        ({"num_stages": 2, "BLOCK": 64}, None),
        ({"BLOCK": 64, "num_stages": 1}, "one stage is for short blocks"),
        ({"BLOCK": 64}, "parameter num_stages is missing"),
        ({}, "parameter BLOCK is missing"),
        ({"BLOCK": 48, "num_stages": 2}, "BLOCK=48 is not in the space"),
        ({"BLOCK": "64", "num_stages": 2}, "BLOCK='64' is not in the space"),
        ({"BLOCK": [64], "num_stages": 2}, "BLOCK=[64] is not in the space"),
        ({"BLOCK": 64.0, "num_stages": 2}, "BLOCK=64.0 is not in the space"),
        ({"BLOCK": 16, "num_stages": True}, "num_stages=True is not in the space"),
        (
            {"BLOCK": 64, "num_stages": 2, "num_warps": 4, "ORDER": 1},
            "unknown parameter ORDER, num_warps",
        ),
    ],
)
def test_why_a_config_is_refused(tiny: Space, config: dict[str, Any], reason: str | None) -> None:
    assert tiny.refusal(config, WORKLOAD, SM90) == reason


def test_estimates_have_the_names_of_the_file(tiny: Space) -> None:
    estimate = tiny.estimate({"BLOCK": 32, "num_stages": 2}, WORKLOAD, SM90)
    assert estimate == {"smem_bytes": 32 * 64 * 2 * 2}


@pytest.mark.parametrize(
    ("workload", "arch", "reason"),
    [
        ("q8", "sm90", None),
        ("q8_w4", "sm90", "it knows no window"),
        ("q8_fp32", "sm90", None),
    ],
)
def test_what_a_kernel_serves(tiny: Space, workload: str, arch: str, reason: str | None) -> None:
    assert tiny.why_not(Workload.parse(workload), archs.load(arch)) == reason


def test_another_op_or_a_dtype_the_arch_lacks_is_not_served(tmp_path: Path) -> None:
    other = spaces.load("matmul_triton")
    assert other.why_not(WORKLOAD, SM90) == "it computes matmul, not fwd"
    with pytest.raises(TunefaError, match=r":3: unknown op on chips of nvidia 'fdw': did you mean"):
        spaces.read(written(tmp_path, TINY.replace("op: fwd", "op: fdw")))
    no_bf16 = {k: v for k, v in SM80.tensor_flops_per_clock_per_sm.items() if k != "bf16"}
    old = type(SM80)(**{**vars(SM80), "name": "sm75", "tensor_flops_per_clock_per_sm": no_bf16})
    space = spaces.read(written(tmp_path, TINY))
    assert space.why_not(WORKLOAD, old) == "sm75 has no bf16"


def test_the_first_default_that_matches_and_fits_is_taken(tiny: Space, tmp_path: Path) -> None:
    assert tiny.default(WORKLOAD, SM90) == {"BLOCK": 64, "num_stages": 2}
    assert tiny.default(Workload.parse("q4096_d128"), SM90) == {"BLOCK": 16, "num_stages": 1}
    # 64 x 64 elements in two stages are 16 KiB: refused, so the next one that matches.
    tight = TINY.replace("smem_bytes <= smem_per_block_bytes", "smem_bytes <= 8192")
    assert spaces.read(written(tmp_path, tight)).default(WORKLOAD, SM90)["BLOCK"] == 16


def test_a_default_is_a_copy(tiny: Space) -> None:
    tiny.default(WORKLOAD, SM90)["BLOCK"] = 0
    assert tiny.default(WORKLOAD, SM90)["BLOCK"] == 64


def test_no_default_that_fits_says_which_rule_refused(tmp_path: Path) -> None:
    none = TINY.replace("smem_bytes <= smem_per_block_bytes", "smem_bytes < 0")
    why = r"tiny has no default for fwd_\w+ on sm90: the default is refused: too much shared memory"
    with pytest.raises(TunefaError, match=why):
        spaces.read(written(tmp_path, none)).default(WORKLOAD, SM90)
    unmatched = TINY.replace("when: head_dim <= 64", "when: head_dim > 64")
    unmatched = unmatched.replace("  - config: {BLOCK: 16, num_stages: 1}\n", "")
    with pytest.raises(TunefaError, match="no entry under `defaults` matches"):
        spaces.read(written(tmp_path, unmatched)).default(WORKLOAD, SM90)


def test_an_unknown_kernel_suggests_the_nearest() -> None:
    name = spaces.names()[0]
    with pytest.raises(TunefaError, match=f"unknown kernel '{name}s': did you mean {name}"):
        spaces.load(f"{name}s")
