"""Runs kernels in Triton's interpreter in one process: `python -m tests.support.interpreter`.

Starting a process and importing torch takes longer than most cases. Prints one JSON object a line:
the case and what became of it. TRITON_INTERPRET=1 must be set before Triton is imported.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

from tests.support import triton_interpreter
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

# Awkward ones: single rows, tails, rows without a key, groups of heads, head dimensions that are no
# powers of two or differ, each dtype.
WORKLOADS = [
    "h2_q1_k1_d64_bf16_causal",
    "h4_kv2_q1_k50_d32_fp16_causal",
    "h4_kv4_q17_k17_d64_fp32_causal",
    "h4_kv2_q17_k17_d64_fp16_full",
    "h4_kv1_q40_k7_d32_bf16_causal",
    "h6_kv3_b2_q33_k70_d16_fp32_causal",
    "h4_kv2_q70_k33_d32_fp16_causal",
    "h4_kv2_q35_k35_d40_bf16_causal",
    "h2_kv1_q35_k50_d80_bf16_full",
    "h3_q20_k36_d80_fp32_causal",
    "h4_kv2_q33_k40_d64_dv32_fp16_causal",
    "h2_q33_k40_d32_dv96_bf16_full",
    "h2_kv1_q20_k30_d128_dv72_fp16_causal",
    "h1_q5_k300_d16_bf16_causal",
    "h1_q300_k5_d16_fp32_full",
    "h1_q10_k10_d256_bf16_causal",
    "b4_h5_q18_k20_d16_fp16_causal",
    # Gradients: windows on both sides, soft-caps and packed sequences too.
    "bwd_h2_q1_k1_d64_bf16_causal",
    "bwd_h4_kv2_q70_k33_d32_fp16_causal",
    "bwd_h4_kv1_q40_k7_d32_bf16_full",
    "bwd_h6_kv3_b2_q33_k70_d16_fp32_causal_deterministic",
    "bwd_h2_kv1_q35_k50_d80_fp16_full",
    "bwd_h2_q20_k36_d40_bf16_causal",
    "bwd_h4_kv2_q33_k40_d64_dv32_fp16_causal",
    "bwd_h2_q33_k40_d32_dv96_bf16_full",
    "bwd_h1_q90_k120_d16_fp16_full_w20_a9",
    "bwd_h1_q120_k90_d16_fp16_causal_w30",
    "bwd_h1_q90_k70_d16_fp32_full_a9",
    "bwd_h2_q50_k60_d32_bf16_causal_softcap",
    "bwd_h4_kv2_b5_q30_k50_d32_fp16_causal_varlen",
    "bwd_h2_b2_q90_k70_d16_fp32_full_w30_softcap_varlen",
    # Few queries over a cache: pages, lengths of their own, windows, soft-caps and sinks too.
    "decode_h4_kv2_k1_d64_bf16",
    "decode_b3_h8_kv2_k300_d32_fp16_varlen",
    "decode_b2_h4_kv1_q5_k1100_d16_bf16_page16_varlen",
    "decode_b2_h6_kv2_q3_k200_d40_fp16_w50_sinks",
    "decode_h4_kv2_q16_k130_d64_dv32_fp16_full_page32",
    "decode_b2_h4_kv2_q2_k70_d32_bf16_page16_varlen_e4m3cache",
    "decode_b2_h4_kv2_k90_d64_fp16_softcap_e4m3cache",
    "decode_h16_kv1_q7_k90_d32_fp16_softcap_sinks",
    # Multi-head latent attention: one head to several tiles of them, padded widths.
    "decode_h1_k1_d576_dv512_bf16_mla",
    "decode_h16_k70_d576_dv512_fp16_page64_mla",
    "decode_b3_h5_q2_k200_d80_dv64_fp16_page16_varlen_mla",
    "decode_b3_h40_k300_d48_dv32_bf16_varlen_mla",
    "decode_h2_kv1_k1100_d32_dv16_bf16_mla",
    "decode_b2_h72_q2_k140_d112_dv80_fp16_full_varlen_mla",
    # A prefix that sequences share, of some pages or of none.
    "decode_b3_h4_kv2_k300_d32_fp16_page16_varlen_sinks_prefix",
    "decode_b2_h4_kv1_q9_k300_d40_dv32_bf16_page64_softcap_prefix",
    "decode_h2_q2_k20_d16_fp16_full_page16_prefix",
    # Packed queries over pages: more and fewer queries than keys, windows on both sides.
    "prefill_b3_h4_kv2_q50_k90_d64_bf16_page16_varlen",
    "prefill_b2_h6_kv2_q20_k150_d40_fp16_page48_w30_softcap_sinks",
    "prefill_b2_h16_kv1_q36_k20_d32_fp16_page1_varlen",
    "prefill_b2_h2_q40_k90_d64_dv32_fp16_full_page32_w20_a9",
    "prefill_b2_h7_kv1_q20_k150_d32_bf16_page128_varlen_e4m3cache",
    "prefill_b2_h2_kv2_q140_k300_d16_fp16_full_page256",
    # Matrix products: each layout, sizes that no tile divides, several groups of rows of tiles.
    "matmul_m1_n1_k1_bf16",
    "matmul_m300_n50_k70_fp16",
    "matmul_m33_n300_k129_fp32_nt",
    "matmul_m272_n272_k80_fp16_tn",
    "matmul_m65_n31_k40_bf16_tt",
    "matmul_m528_n288_k144_fp16_tt",
]
ARCH = "sm90"


def names() -> list[str]:
    """The kernels whose language has an interpreter."""
    return [name for name in kernels.names() if kernels.load(name).language == "triton"]


def cases() -> Iterator[tuple[Case, dict[str, Any]]]:
    """For each workload the default, and every value of every parameter where it can be there."""
    target = Target.named(ARCH)
    for kernel in map(kernels.load, names()):
        every = (Case(kernel, workload, target) for workload in map(Workload.parse, WORKLOADS))
        yield from thinned(case for case in every if case.why_not() is None)


def covering(case: Case) -> list[dict[str, Any]]:
    """The default, and few others, so that every value of every parameter that can be is in one."""
    configs = list(case.feasible().configs)
    random.Random(str(case.workload)).shuffle(configs)
    chosen = [case.default()]
    missing = {item for config in configs for item in config.items()} - chosen[0].items()
    while missing:
        chosen.append(max(configs, key=lambda config: len(missing & config.items())))
        missing -= chosen[-1].items()
    return chosen


def thinned(cases: Iterable[Case]) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yields (case, config) of `covering`, without most repetitions.

    Beyond the first one of a case, a config is left out whose values have all run.
    """
    run: set[tuple[str, Any]] = set()
    for case in cases:
        for place, config in enumerate(covering(case)):
            if place == 0 or not config.items() <= run:
                run.update(config.items())
                yield case, config


def main() -> None:
    """Prints each case with its verdict."""
    import torch

    from tunefa.compile import languages
    from tunefa.measure import ops
    from tunefa.measure.comparison import TOLERANCE

    triton_interpreter.prepare()
    for case, config in cases():
        op = ops.of(case.workload)
        made = op.tensors(case.workload, "cpu", seed=0)
        languages.load(case.kernel.language).interpret(op.launch_spec(case, config), made)
        verdict = op.expected(case.workload, "normal", made, torch.float64).compare(
            *made[op.OUTPUTS]
        )
        passed = verdict.passed
        if case.workload.dtype == "bf16" and verdict.row is not None:
            # The interpreter cuts bits off where the hardware rounds: twice the error in a row.
            within = verdict.row.error <= 2 * verdict.row.limit
            passed = verdict.error <= TOLERANCE["bf16"] and within
        found = {"passed": passed, "reason": verdict.reason}
        print(json.dumps({"kernel": case.kernel.name, "config": config, **found}), flush=True)


if __name__ == "__main__":
    main()
