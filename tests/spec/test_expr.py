from __future__ import annotations

import math
import pickle
import timeit
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefa.errors import TunefaError
from tunefa.spec.expr import Expr

ENV: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 64, "causal": True, "dtype": "bf16", "w": None}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("(BLOCK_M + 2 * BLOCK_N) * 128 * 2", 65536),
        ("BLOCK_M - 1 - 1", 126),
        ("-7 // 2", -4),
        ("BLOCK_M / 256", 0.5),
        ("BLOCK_M % 48", 32),
        ("2 ** 10 - 2 ** -1", 1023.5),
        ("1e3", 1000.0),
        ("32 <= BLOCK_N < BLOCK_M", True),
        ("32 <= BLOCK_M < BLOCK_N", False),
        ("1 < 2 > 3", False),
        ("BLOCK_N in (64, 128)", True),
        ("BLOCK_N not in [64, 128]", False),
        ("dtype == 'bf16' and not causal", False),
        ("w or BLOCK_N", 64),
        ("w and missing", None),
        ("True or missing", True),
        ("0 if causal else missing", 0),
        ("w == None", True),
        ("[1, (2, 'x')]", (1, (2, "x"))),
        ("()", ()),
        ("min(BLOCK_M, BLOCK_N, 96)", 64),
        ("max((1, 3, 2))", 3),
        ("abs(-3)", 3),
        ("log2(8)", 3.0),
        ("ceil_div(BLOCK_M + 1, 128)", 2),
        ("round_up(130, 64)", 192),
        ("next_pow2(96)", 128),
        ("next_pow2(128)", 128),
        ("next_pow2(0)", 1),
        ("  BLOCK_M\n", 128),
    ],
)
def test_value(source: str, value: object) -> None:
    result = Expr(source)(ENV)
    assert result == value
    assert type(result) is type(value)


OPS = ["+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", "and", "or"]
LEAVES = st.sampled_from(["a", "b", "7.5", "True"]) | st.integers(0, 99).map(str)
SOURCES = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(inner, st.sampled_from(OPS), inner).map(lambda parts: f"({' '.join(parts)})")
        | st.tuples(inner, inner, inner).map(lambda parts: "({} if {} else {})".format(*parts))
        | st.tuples(st.sampled_from(["-", "not "]), inner).map(lambda parts: f"({''.join(parts)})")
    ),
)


@given(SOURCES, st.integers(-5, 5), st.integers(-5, 5))
def test_agrees_with_python(source: str, a: int, b: int) -> None:
    try:
        value = Expr(source)({"a": a, "b": b})
    except TunefaError:
        with pytest.raises(ArithmeticError):
            eval(source, {"a": a, "b": b})
    else:
        expected = eval(source, {"a": a, "b": b})
        assert value == expected or math.isnan(expected)


def test_names_are_the_names_it_reads() -> None:
    assert Expr("min(BLOCK_M, x) if causal else 'y'").names == {"BLOCK_M", "x", "causal"}
    assert Expr("1").names == frozenset()


@pytest.mark.parametrize(
    "source",
    [
        "x.y",
        "x[0]",
        "lambda: 0",
        "f'{x}'",
        "b'x'",
        "1j",
        "...",
        "+1",
        "~1",
        "x | 1",
        "x @ x",
        "[i for i in (1, 2)]",
        "{1: 2}",
        "{1}",
        "(y := 1)",
        "min(*x)",
        "min",
        "().__class__",
    ],
)
def test_other_syntax_is_refused_with_what_may_be_used(source: str) -> None:
    with pytest.raises(TunefaError) as caught:
        Expr(source, "f:3")
    assert str(caught.value).startswith(f"f:3: in {source!r}: ")
    assert "is not allowed here: use + - * / // % **, comparisons" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "invalid syntax"),
        ("1 +", "invalid syntax"),
        ("x = 1", "invalid syntax"),
        ("1\x00", "null bytes|cannot be parsed"),
        ("(" * 300 + "1" + ")" * 300, "too many nested parentheses|cannot be parsed"),
        ("-" * 20_000 + "1", "cannot be parsed|too many nested"),
        ("1" + "+1" * 20_000, "cannot be parsed|too many nested"),
        ("eval('1')", "unknown function 'eval' "),
        ("cel_div(1, 2)", r"unknown function 'cel_div': did you mean ceil_div\?"),
        ("ceil_div(1)", r"ceil_div cannot take 1 argument\(s\)"),
        ("max()", r"max cannot take 0 argument\(s\)"),
        ("max(1, key=abs)", "is not allowed: call a function by its name"),
        ("x.y(1)", "is not allowed: call a function by its name"),
        ("x is None", "'is' is not allowed: write == or !="),
        ("dtype in 'bf16'", r"'in' needs a tuple such as \(64, 128\), not \"'bf16'\""),
    ],
)
def test_refused_when_it_is_read(source: str, problem: str) -> None:
    with pytest.raises(TunefaError, match=problem):
        Expr(source)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("BLOK_M * 2", "unknown name 'BLOK_M': did you mean BLOCK_M? (known: BLOCK_M, BLOCK_N"),
        ("1 // (BLOCK_N - 64)", "with BLOCK_N=64"),
        ("1 / 0", "division by zero"),
        ("dtype * 3", "arithmetic needs numbers, not 'bf16' and 3, with dtype='bf16'"),
        ("'%999999999d' % 1", "arithmetic needs numbers"),
        ("(1, 2) * 999999999", "arithmetic needs numbers"),
        ("w + 1", "arithmetic needs numbers, not None and 1, with w=None"),
        ("dtype < 3", "with dtype='bf16'"),
        ("-dtype", "with dtype='bf16'"),
        ("9 ** 9 ** 9", "a power above 2**1024 is not computed"),
        ("2 ** 0.5", "the exponent 0.5 is not a whole number"),
        ("2 ** dtype", "arithmetic needs numbers"),
        ("10 ** 300 * 1e300 * 10 ** 300 * 10 ** 300 // 0", "division"),
        ("log2(0)", "math domain error"),
        ("next_pow2(1.5)", "integer"),
        ("max(3)", "not iterable"),
    ],
)
def test_refused_when_it_is_computed(source: str, problem: str) -> None:
    expr = Expr(source, "spaces/x.yaml:7")
    with pytest.raises(TunefaError) as caught:
        expr(ENV)
    assert str(caught.value).startswith(f"spaces/x.yaml:7: in {source!r}: ")
    assert problem in str(caught.value)


@given(st.text() | st.text(alphabet="ab01()[]{}+-*/%<=>!.,:'\" notifelsorand\n"))
def test_any_text_computes_or_is_one_tunefa_error(source: str) -> None:
    try:
        Expr(source)({"a": 1, "b": 2})
    except TunefaError as error:
        assert "in " in str(error)


def test_it_can_be_sent_to_another_process() -> None:
    expr = pickle.loads(pickle.dumps(Expr("BLOCK_M * 2", "f:1")))
    assert expr(ENV) == 256
    assert (expr.where, repr(expr)) == ("f:1", "Expr('BLOCK_M * 2')")


def test_it_is_fast_enough_to_enumerate_a_space() -> None:
    expr = Expr("(BLOCK_M + 2 * BLOCK_N) * 128 * 2 <= 232448")
    seconds = min(timeit.repeat(lambda: expr(ENV), number=1000, repeat=5)) / 1000
    assert seconds < 20e-6  # about 0.6 us; the margin is for a busy machine
