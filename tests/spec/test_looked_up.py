"""tunefa/spec/looked_up.py: the workload that a call looks its config up for.

That the runtime asks for these is in tests/runtime/test_few_queries.py and test_decode_plan.py.
"""

from __future__ import annotations

import pytest

from tunefa.spec import looked_up
from tunefa.spec.workload import Workload

SMS = 132
USUAL = "decode_b16_h32_kv8_q1_k8192_d128_bf16_causal"


@pytest.mark.parametrize(
    ("workload", "asked"),
    [
        ("decode_b1_k64", USUAL),
        ("decode_b128_k131072", USUAL),
        (USUAL, USUAL),
        ("decode_b1_k4096_page64_softcap", f"{USUAL}_softcap_page64"),
        ("decode_b1_q4_k4096_fp16", "decode_b16_h32_kv8_q4_k8192_d128_fp16_causal"),
        ("decode_b1_k20000_w100", f"{USUAL}_w100"),
        ("decode_b1_k20000_w9000", "decode_b16_h32_kv8_q1_k9001_d128_bf16_causal_w9000"),
        ("decode_b9_k4096_batchvariant", "decode_b9_k4096_batchvariant"),
        ("decode_b9_k4096_varlen", USUAL),
        ("decode_b9_k4096_fast", USUAL),
        ("matmul_m64_n64_k64", "matmul_m64_n64_k64"),
        ("prefill_b2_q512_k2048_page64_varlen", "prefill_b2_q512_k2048_page64_varlen"),
        ("q4096", "q4096"),
        ("bwd_q1_k4096", "bwd_q1_k4096"),
        ("b1_q1_k4096", USUAL),
        ("b8_q16_k1024", "decode_b16_h32_kv8_q16_k8192_d128_bf16_causal"),
        ("b9_q1_k4096", "b9_q1_k4096"),
        ("b1_q17_k4096", "b1_q17_k4096"),
        ("b1_q1_k1023", "b1_q1_k1023"),
        ("b1_q1_k4096_fp32", "b1_q1_k4096_fp32"),
        ("b1_q1_k4096_fast", "b1_q1_k4096_fast"),
        ("b1_q9_k4096_varlen", "b1_q9_k4096_varlen"),
        ("b1_q9_k4096_a3", "b1_q9_k4096_a3"),
        ("b1_q9_k4096_full_w90", "b1_q9_k4096_full_w90"),
    ],
)
def test_calls_look_their_config_up(workload: str, asked: str) -> None:
    found = looked_up.of_call(Workload.parse(workload), SMS)
    assert found == Workload.parse(asked)
    assert looked_up.of_call(found, SMS) == found


def test_on_few_sms_a_forward_pass_is_one() -> None:
    few = Workload.parse("b4_q1_k4096")
    assert looked_up.of_call(few, 64).op == "decode" and looked_up.of_call(few, 63) is few
