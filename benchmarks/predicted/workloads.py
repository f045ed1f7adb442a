"""The workloads that predictions are judged on. No recorded landscape holds one of them."""

from __future__ import annotations

WORKLOADS = (
    "b4_h32_q2048_d64_causal",
    "b2_h24_q4096_d64_full",
    "b2_h16_q8192_d64_causal",
    "b8_h16_q1024_d64_full",
    "b4_h16_q2048_d80_full",
    "b2_h16_q8192_d96_full",
    "b8_h32_q512_d96_causal",
    "b2_h16_q2048_d128_full",
    "b8_h16_q1024_d128_causal",
    "b1_h64_kv8_q4096_d128_causal",
    "b1_h16_q32768_d128_causal",
    "b1_h8_q512_k32768_d128_full",
    "b3_h20_q3000_d128_full",
    "b4_h32_kv4_q2048_d128_causal",
    "b2_h32_q4096_d128_fp16_causal",
    "b2_h16_q4096_d160_causal",
    "b2_h16_q4096_d192_causal",
    "b2_h16_q2048_d192_dv128_causal",
    "b1_h16_q8192_d256_causal",
    "b8_h8_q2048_d256_full",
    "b16_h8_q1024_d256_causal",
    "b2_h32_kv8_q4096_d128_e4m3_causal",
    "b4_h16_q8192_d128_e4m3_full",
    "b8_h16_q2048_d64_e4m3_causal",
)
