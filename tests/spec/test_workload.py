from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefa.errors import TunefaError
from tunefa.spec.expr import Expr
from tunefa.spec.workload import DTYPES, Workload


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    heads_kv, seqlens = draw(st.integers(1, 16)), st.integers(1, 1 << 20)
    return Workload(
        batch=draw(st.integers(1, 512)),
        heads=heads_kv * draw(st.integers(1, 16)),
        heads_kv=heads_kv,
        seqlen_q=draw(seqlens),
        seqlen_k=draw(seqlens),
        head_dim=draw(st.integers(16, 256)),
        head_dim_v=draw(st.integers(16, 256)),
        dtype=draw(st.sampled_from(sorted(DTYPES))),
        causal=(causal := draw(st.booleans())),
        window_left=draw(st.none() | st.integers(0, (1 << 20) - 1)),
        window_right=None if causal else draw(st.none() | seqlens),
        softcap=draw(st.booleans()),
        varlen=draw(st.booleans()),
    )


@given(workloads())
def test_text_round_trips(workload: Workload) -> None:
    assert Workload.parse(str(workload)) == workload


@given(workloads(), st.randoms())
def test_parts_come_in_any_order(workload: Workload, shuffled: random.Random) -> None:
    parts = str(workload).split("_")
    shuffled.shuffle(parts)
    assert Workload.parse("_".join(parts)) == workload


@given(st.text() | st.text(alphabet="qkbhdvwa_0123456789-fulcasotp"))
def test_any_text_parses_or_is_one_tunefa_error(text: str) -> None:
    try:
        workload = Workload.parse(text)
    except TunefaError as error:
        assert repr(text) in str(error)
    else:
        assert Workload.parse(str(workload)) == workload


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("q4096", "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal"),
        ("q8k_k16K", "fwd_b1_h32_kv8_q8192_k16384_d128_bf16_causal"),
        ("q8_varlen_b3", "fwd_b3_h32_kv8_q8_k8_d128_bf16_causal_varlen"),
        ("h16_q1", "fwd_b1_h16_kv16_q1_k1_d128_bf16_causal"),
        ("kv4_q1", "fwd_b1_h32_kv4_q1_k1_d128_bf16_causal"),
        ("d64_q1", "fwd_b1_h32_kv8_q1_k1_d64_bf16_causal"),
        ("d192_dv128_q1", "fwd_b1_h32_kv8_q1_k1_d192_dv128_bf16_causal"),
        ("dv64_q1", "fwd_b1_h32_kv8_q1_k1_d128_dv64_bf16_causal"),
        ("full_fp16_q1_fwd", "fwd_b1_h32_kv8_q1_k1_d128_fp16_full"),
        (" q9_w4\n", "fwd_b1_h32_kv8_q9_k9_d128_bf16_causal_w4"),
        ("q9_a4", "fwd_b1_h32_kv8_q9_k9_d128_bf16_full_a4"),
        ("softcap_a4_w5_q9", "fwd_b1_h32_kv8_q9_k9_d128_bf16_full_w5_a4_softcap"),
        ("q9_w4_full", "fwd_b1_h32_kv8_q9_k9_d128_bf16_full_w4"),
        ("q9_softcap", "fwd_b1_h32_kv8_q9_k9_d128_bf16_causal_softcap"),
    ],
)
def test_parts_left_out_default(text: str, canonical: str) -> None:
    assert str(Workload.parse(text)) == canonical


def test_of_defaults_what_is_none() -> None:
    workload = Workload.of(seqlen_q=7, heads=4, heads_kv=None, head_dim=64, dtype=None)
    assert workload == Workload.parse("q7_h4_d64")


def attended_pairs(workload: Workload) -> int:
    """The definition of the mask, pair by pair."""
    diagonal = workload.seqlen_k - workload.seqlen_q
    return sum(
        (not workload.causal or j <= i + diagonal)
        and (workload.window_left is None or j >= i + diagonal - workload.window_left)
        and (workload.window_right is None or j <= i + diagonal + workload.window_right)
        for i in range(workload.seqlen_q)
        for j in range(workload.seqlen_k)
    )


@pytest.mark.parametrize("right", [0, None, 1, 3, 9, 20])
def test_pairs_are_counted_exactly(right: int | None) -> None:
    mask: dict[str, Any] = {"causal": False, "window_right": right}
    if right == 0:
        mask = {"causal": True}
    lefts = (None, 0, 1, 4, 7, 19)
    for seqlen_q, seqlen_k, left in itertools.product(range(1, 12), range(1, 12), lefts):
        workload = Workload.of(seqlen_q=seqlen_q, seqlen_k=seqlen_k, window_left=left, **mask)
        assert workload.pairs == attended_pairs(workload), str(workload)
        whole = Workload.of(seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=mask["causal"])
        # The sides that leave out nothing are gone.
        assert (workload == whole) == (workload.pairs == whole.pairs), str(workload)


@given(workloads())
def test_pairs_are_within_the_rectangle(workload: Workload) -> None:
    most = workload.seqlen_q * workload.seqlen_k * (workload.batch if workload.varlen else 1)
    assert 0 <= workload.pairs <= most


def test_packed_sequences_have_all_lengths_up_to_the_longest() -> None:
    workload = Workload.parse("b4_q100_k10_varlen")
    assert sorted(workload.lengths) == [(25, 3), (50, 5), (75, 8), (100, 10)]
    assert workload.lengths != sorted(workload.lengths)
    assert workload.lengths == Workload.parse("b4_q100_k10_full_varlen").lengths
    assert Workload.parse("b4_q100_k10").lengths == [(100, 10)] * 4


@pytest.mark.parametrize("mask", ["causal", "full", "causal_w4"])
def test_the_work_of_packed_sequences_is_that_of_each(mask: str) -> None:
    workload = Workload.parse(f"b5_h4_kv2_q13_k20_d64_dv32_{mask}_varlen")
    alone = [
        Workload.parse(f"h4_kv2_q{rows}_k{keys}_d64_dv32_{mask}") for rows, keys in workload.lengths
    ]
    for name in ("pairs", "exp2_count", "flops", "io_bytes"):
        assert getattr(workload, name) == sum(getattr(each, name) for each in alone), name
    assert all(each.pairs == attended_pairs(each) for each in alone)


@pytest.mark.parametrize(
    "text", ["b32_q4096_varlen", "b32_q4096_full_varlen", "b8_q2048_w512_varlen"]
)
def test_even_sequences_have_about_as_much_work(text: str) -> None:
    workload = Workload.parse(text)
    even = workload.dense_equivalent
    assert not even.varlen and even.dense_equivalent == even
    assert even.flops == pytest.approx(workload.flops, rel=0.15)
    assert even.io_bytes == pytest.approx(workload.io_bytes, rel=0.15)


def test_pairs_at_the_corners() -> None:
    assert Workload.parse("q1_k8192").pairs == 8192  # decoding sees every key
    assert Workload.parse("q4_k1").pairs == 1  # three queries see nothing
    assert Workload.parse("q4_k4").pairs == 10


def test_flops_do_not_take_seqlen_k_for_seqlen_q() -> None:
    full = Workload.parse("b1_h32_kv8_q4096_k15360_d128_bf16_full")
    assert full.flops == 4 * 32 * 4096 * 15360 * 128 == 1_030_792_151_040
    assert full.flops / Workload.parse("b1_h32_kv8_q4096_d128_bf16_full").flops == 3.75
    causal = Workload.parse("b1_h32_kv8_q4096_k15360_d128_bf16_causal")
    assert causal.pairs == 4096 * (15360 - 4096) + 4096 * 4097 // 2
    assert causal.flops == 4 * 32 * causal.pairs * 128


def test_flops_of_a_window_are_those_of_its_pairs() -> None:
    workload = Workload.parse("b2_h4_q1024_d64_w128")
    pairs = 128 * 1024 - 128 * 127 // 2  # the first 127 rows see fewer
    assert workload.flops == 4 * 2 * 4 * pairs * 64


def test_a_window_that_leaves_out_no_key_is_none() -> None:
    assert Workload.parse("q4_k9_w9") == Workload.parse("q4_k9_w1k")
    assert Workload.parse("q4_k9_w9") == Workload.parse("q4_k9")
    assert Workload.parse("q4_k9_w8").window_left == 7
    assert Workload.parse("q4_k9_a3") == Workload.parse("q4_k9_full")
    assert Workload.parse("q4_k9_w9_a2") == Workload.parse("q4_k9_a2")
    assert Workload.parse("q4_k9_a2").window_right == 2


@pytest.mark.parametrize(
    ("text", "band"),
    [
        ("q9_full", (None, None)),
        ("q9", (None, 0)),
        ("q9_w1", (0, 0)),
        ("q9_full_w4", (3, None)),
        ("q9_w4_a2", (3, 2)),
    ],
)
def test_bands_are_flash_attention_s_window_sizes(text: str, band: tuple[int | None, ...]) -> None:
    assert Workload.parse(text).band == band


def test_work_with_another_head_dim_v() -> None:
    workload = Workload.parse("b2_h6_kv3_q10_k20_d64_dv32_fp16_full")
    assert workload.group == 2
    assert workload.exp2_count == 2 * 6 * 10 * 20
    assert workload.flops == 2 * 2 * 6 * 10 * 20 * (64 + 32)
    q, k, v, out = 2 * 6 * 10 * 64, 2 * 3 * 20 * 64, 2 * 3 * 20 * 32, 2 * 6 * 10 * 32
    assert workload.io_bytes == 2 * (q + k + v + out) + 4 * 2 * 6 * 10


def test_the_output_of_e4m3_has_two_bytes() -> None:
    workload = Workload.parse("h6_kv3_q10_k20_d64_e4m3_full")
    q, kv = 6 * 10 * 64, 3 * 20 * 64
    assert workload.io_bytes == q + 2 * kv + 2 * q + 4 * 6 * 10
    assert workload.env()["dtype_bytes"] == 1


def test_keys_that_a_window_hides_are_not_moved() -> None:
    """The last query sees 1,024 keys, and the first one 1,023 that stand before these."""
    hidden, seen = (Workload.parse(f"b1_h32_kv16_q1024_k{k}_w1023") for k in (131_072, 2047))
    assert hidden.io_bytes == seen.io_bytes and hidden.flops == seen.flops
    gradient = Workload.parse("bwd_b1_h32_kv16_q1024_k131072_w1023")  # zeros of hidden keys, too
    assert gradient.io_bytes > 50 * hidden.io_bytes


def test_expressions_read_its_fields() -> None:
    env = Workload.parse("b2_h6_kv3_q10_fp32").env()
    fields = {field.name for field in dataclasses.fields(Workload)} - {"op"}
    assert env.keys() == fields | {"group", "dtype_bytes", "kv_bytes"}
    assert Expr("batch * group * dtype_bytes if causal and window_left == None else 0")(env) == 16


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "unknown part '' (known: fwd, bwd, decode, prefill, b<batch>, h<heads>, kv<heads_kv>"),
        ("fwd_b4", "seqlen_q is missing: give the number of query rows, such as 8192"),
        ("q0", "seqlen_q is '0': give a whole number from 1"),
        ("q-1", "seqlen_q is '-1': give a whole number from 1"),
        ("q8k1", "seqlen_q is '8k1': give a whole number from 1"),
        ("q1_w0", "window is '0': give a whole number from 1"),
        ("q1_x3", "unknown part 'x3' (known: fwd, "),
        ("q1_bf15", "unknown part 'bf15': did you mean bf16? (known: fwd, "),
        ("q1_casual", "unknown part 'casual': did you mean causal?"),
        ("q1_q2", "'q2' gives seqlen_q a second time: leave one out"),
        ("q1_causal_full", "'full' gives causal a second time: leave one out"),
        ("q1_h3_kv2", "heads 3 is not a multiple of heads_kv 2"),
        ("q1_kv5", "heads 32 is not a multiple of heads_kv 5: each KV head serves equally many"),
        ("q9_a0", "window_right is '0': give a whole number from 1"),
        (
            "q9_a4_causal",
            "window_right is 4 with a causal mask, which hides every key beyond the diagonal",
        ),
        ("q9_softcap_softcap", "'softcap' gives softcap a second time: leave one out"),
        ("q9_sofcap", "unknown part 'sofcap': did you mean softcap?"),
        ("q1_d300", "head_dim 300 is above 256, the largest tunefa's kernels serve: use 256 or"),
        ("q1_dv300", "head_dim_v 300 is above 256, the largest tunefa's kernels serve"),
        ("q1_d8", "head_dim 8 is below 16, the smallest tunefa's kernels serve: pad it"),
    ],
)
def test_parse_quotes_the_text_and_says_what_to_do(text: str, problem: str) -> None:
    with pytest.raises(TunefaError) as caught:
        Workload.parse(text)
    assert str(caught.value).startswith(f"workload {text!r}: {problem}")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batch", 0, "batch is 0: give a whole number from 1, such as 8192 or 8k (8192)"),
        ("heads", -1, "heads is -1: give a whole number from 1, such as 8192 or 8k (8192)"),
        ("seqlen_k", 4.0, "seqlen_k is 4.0: give a whole number from 1, such as 8192 or 8k (8192)"),
        ("batch", True, "batch is True: give a whole number from 1, such as 8192 or 8k (8192)"),
        (
            "window_right",
            -1,
            "window_right is -1: give a whole number from 1, such as 8192 or 8k (8192)",
        ),
        (
            "window_left",
            -1,
            "window_left is -1: give a whole number from 0, such as 8192 or 8k (8192)",
        ),
        (
            "dtype",
            "fp61",
            "unknown dtype 'fp61': did you mean fp16? (known: bf16, fp16, fp32, e4m3)",
        ),
        ("op", "fdw", "unknown op 'fdw': did you mean fwd? (known: fwd, bwd, decode, prefill)"),
    ],
)
def test_fields_are_checked(field: str, value: object, message: str) -> None:
    with pytest.raises(TunefaError) as caught:
        Workload.of(**{"seqlen_q": 1, field: value})
    assert str(caught.value) == message


def test_seqlen_q_has_no_default() -> None:
    with pytest.raises(TunefaError, match="seqlen_q is missing"):
        Workload.of(batch=1)
