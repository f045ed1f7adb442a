"""The workloads that every kernel is asked about, and those whose configs are compiled."""

from __future__ import annotations

import itertools

from tunefa.spec.workload import Workload

WORKLOADS = [
    Workload.parse(f"{heads}_q{seqlen_q}_k{seqlen_k}_d{head_dim}_{dtype}_{mask}")
    for heads, (seqlen_q, seqlen_k), head_dim, dtype, mask in itertools.product(
        ("h32_kv8", "h8", "h8_kv1_b4", "h1"),
        ((1, 1), (1, 16384), (17, 100), (100, 17), (1024, 1024), (4096, 15360), (16384, 16384)),
        (16, 17, 40, 64, 72, 80, 96, 128, 160, 256),
        ("bf16", "fp16", "fp32", "e4m3"),
        ("causal", "full"),
    )
] + [
    Workload.parse(f"bwd_{heads}_q{seqlen_q}_k{seqlen_k}_d{head_dim}_{dtype}_{mask}")
    for heads, (seqlen_q, seqlen_k), head_dim, dtype, mask in itertools.product(
        ("h32_kv8", "h1"),
        ((1, 1), (1, 16384), (17, 100), (100, 17), (1024, 1024), (4096, 15360)),
        (16, 40, 64, 80, 128, 192, 256),
        ("bf16", "fp16", "fp32"),
        ("causal", "full", "causal_varlen"),
    )
] + [
    Workload.parse(f"decode_{heads}_q{seqlen_q}_k{seqlen_k}_d{head_dim}_{dtype}_{more}")
    for heads, (seqlen_q, seqlen_k), head_dim, dtype, more in itertools.product(
        ("b128_h32_kv4", "h32", "b2_h64_kv8"),
        ((1, 1), (1, 131072), (4, 1000), (16, 5000)),
        (16, 40, 64, 80, 128, 192, 256),
        ("bf16", "fp16"),
        ("causal", "causal_page16", "full_page256_softcap", "causal_w100_sinks_varlen_page1",
         "causal_e4m3cache_page16", "causal_page16_prefix", "causal_batchvariant"),
    )
] + [
    Workload.parse(f"prefill_{heads}_q{seqlen_q}_k{seqlen_k}_d{head_dim}_{dtype}_{more}")
    for heads, (seqlen_q, seqlen_k), head_dim, dtype, more in itertools.product(
        ("b128_h32_kv4", "h32", "b2_h28_kv4"),
        ((1, 1), (1, 131072), (512, 5000), (100, 17)),
        (16, 40, 64, 80, 128, 192, 256),
        ("bf16", "fp16"),
        ("causal_page1", "causal_page16_varlen", "full_page256_softcap", "full_page48_a9_sinks",
         "causal_e4m3cache_page128_w100"),
    )
] + [
    Workload.parse(f"decode_{heads}_kv1_q{rows}_k{keys}_{dims}_fp16_{more}_mla")
    for heads, rows, keys, dims, more in itertools.product(
        ("b128_h16", "h128", "b2_h5"), (1, 4), (4, 131072), ("d576_dv512", "d288_dv256"),
        ("causal", "full_page16", "causal_varlen_page1"),
    )
] + [
    Workload.parse(f"matmul_m{m}_n{n}_k{k}_{dtype}_{layout}")
    for (m, n, k), dtype, layout in itertools.product(
        (
            (1, 1, 1), (1, 4096, 4096), (4096, 1, 4096), (4096, 4096, 1), (17, 100, 33),
            (1024, 1024, 1024), (8192, 8192, 8192), (16, 2048, 65536), (2048, 32, 128),
        ),
        ("bf16", "fp16", "fp32"),
        ("nn", "nt", "tn", "tt"),
    )
]  # fmt: skip

PADDED = "d80_bf16_causal"
SMALL = ("d128_bf16_causal", "d64_bf16_full", "d64_fp32_causal")
DEFAULTS = (*SMALL, PADDED, "d256_bf16_full", "d80_fp32_full")
PRODUCTS = ("matmul_m4096_bf16", "matmul_m4096_fp32_nt", "matmul_m16_n4096_k4096_bf16_nt",
            "matmul_m1000_fp16", "matmul_m512_bf16_tn")  # fmt: skip
CACHES = ("b16_h32_kv8_k8192_d128_bf16", "h32_kv4_k1024_d64_bf16_page64", "b4_h8_k4096_d256_bf16",
          "b128_h64_kv8_k2048_d128_fp16_sinks_varlen_page16", "h32_kv8_q4_k4096_d64_bf16",
          "b2_h32_kv8_k4096_d80_bf16_w512", "h32_kv8_k4096_d128_bf16_e4m3cache_page16",
          "b4_h32_kv4_k4096_d64_bf16_e4m3cache", "b16_h128_k8192_bf16_page64_mla",
          "b4_h16_q2_k4096_bf16_mla",
          "b64_h32_kv8_k8192_d128_bf16_page64_prefix",
          "b16_h32_kv4_q4_k4096_d64_fp16_page16_varlen_sinks_prefix")  # fmt: skip
PAGES = ("b4_h32_kv8_q2048_k8192_d128_bf16_page64",
         "h8_q2048_d256_bf16_page256", "h28_kv4_q300_k2048_d80_bf16_page128_w512_sinks",
         "h32_kv8_q2048_k4096_d128_bf16_page64_e4m3cache", "h32_q2048_d128_fp16_page1_softcap",
         "h32_kv8_q2048_d64_bf16_page32_e4m3cache")  # fmt: skip
