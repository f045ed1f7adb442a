"""tunefa/spec/matmul.py: the text form of a matrix product, and its amount of work."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefa.errors import TunefaError
from tunefa.spec.matmul import DTYPES, LAYOUTS, Matmul, own
from tunefa.spec.workload import Workload

SIZES = st.integers(1, 1 << 20)


@given(SIZES, SIZES, SIZES, st.sampled_from(sorted(DTYPES)), st.sampled_from(LAYOUTS))
def test_the_text_is_read_back(m: int, n: int, k: int, dtype: str, layout: str) -> None:
    made = Matmul(m=m, n=n, k=k, dtype=dtype, layout=layout)
    assert own(Workload.parse(str(made))) == made


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("matmul_m4096", "matmul_m4096_n4096_k4096_bf16"),
        ("m4k_matmul_k1k_float16", "matmul_m4096_n4096_k1024_fp16"),
        ("matmul_nt_k8_n4_m2_fp32", "matmul_m2_n4_k8_fp32_nt"),
        ("matmul_m2_nn", "matmul_m2_n2_k2_bf16"),
    ],
)
def test_parts_have_any_order_and_default(text: str, canonical: str) -> None:
    assert str(Workload.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("matmul", "m is missing: give the number of rows of A and C, such as m4096"),
        ("matmul_m0", "m is '0': give a whole number from 1, such as 8192 or 8k (8192)"),
        ("matmul_m4_m5", "'m5' gives m a second time: leave one out"),
        ("matmul_m4_nt_tn", "'tn' gives layout a second time: leave one out"),
        ("matmul_m4_e4m3", "unknown part 'e4m3' (known: matmul, m<m>, n<n>, k<k>, bf16, fp16"),
        ("matmul_m4_causal", "unknown part 'causal' (known: matmul, m<m>"),
        ("matmul_q8192", "unknown part 'q8192' (known: matmul, m<m>"),
    ],
)
def test_parse_quotes_the_text_and_says_what_to_do(text: str, problem: str) -> None:
    with pytest.raises(TunefaError) as caught:
        Workload.parse(text)
    assert str(caught.value).startswith(f"workload {text!r}: {problem}")


def test_a_text_of_no_known_op_names_this_one() -> None:
    with pytest.raises(TunefaError, match=r"unknown part 'matmal': did you mean matmul\?"):
        Workload.parse("matmal_m4096")


def test_fields_are_checked() -> None:
    with pytest.raises(TunefaError, match=r"k is 4\.0: give a whole number from 1"):
        Matmul(m=1, n=1, k=4.0)  # type: ignore[arg-type]
    with pytest.raises(TunefaError, match="unknown layout 'mn'"):
        Matmul(m=1, n=1, k=1, layout="mn")


def test_the_amount_of_work() -> None:
    asked = Matmul(m=3, n=5, k=7, dtype="fp32")
    assert asked.flops == 2 * 3 * 5 * 7 and asked.exp2_count == 0
    assert asked.io_bytes == 4 * (3 * 7 + 7 * 5 + 3 * 5)
    assert Matmul(m=3, n=5, k=7).io_bytes == asked.io_bytes // 2


def test_only_multiples_of_16_are_aligned() -> None:
    assert Matmul(m=16, n=32, k=48).is_aligned
    for m, n, k in ((24, 16, 16), (16, 24, 16), (16, 16, 24)):
        assert not Matmul(m=m, n=n, k=k).is_aligned


def test_what_expressions_read() -> None:
    asked = Matmul(m=3, n=5, k=7, dtype="fp16", layout="nt")
    assert asked.env() == {
        "m": 3, "n": 5, "k": 7, "dtype": "fp16", "layout": "nt", "dtype_bytes": 2,
    }  # fmt: skip


def test_distances_are_factors_of_two() -> None:
    asked = Matmul(m=1024, n=1024, k=1024)
    assert asked.octaves_from(asked) == 0
    assert asked.octaves_from(Matmul(m=512, n=1024, k=1024)) == 1
    twice = Matmul(m=2048, n=2048, k=2048)
    assert asked.octaves_from(twice) == twice.octaves_from(asked) == pytest.approx(math.sqrt(3))
    families = {Matmul(m=1, n=1, k=1, dtype=d, layout=x).family for d in DTYPES for x in LAYOUTS}
    assert len(families) == 2 * len(LAYOUTS)


def test_it_has_no_field_of_attention() -> None:
    product = Workload.parse("matmul_m4096")
    with pytest.raises(AttributeError):
        _ = product.heads
    with pytest.raises(TypeError, match=r"fwd_b1_h32.* is no matmul"):
        own(Workload.parse("q8"))
