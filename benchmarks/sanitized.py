"""Launches tunefa's own kernels on small problems, for compute-sanitizer: the forward pass,
gradients and decode.

    python -m benchmarks.sanitized  # compiles, so that the next commands find all binaries
    compute-sanitizer --tool memcheck python -m benchmarks.sanitized
    compute-sanitizer --tool racecheck python -m benchmarks.sanitized --kernel attention_bwd_triton

Each kernel runs the default config on each of `WORKLOADS` that it serves, twice, and is compared
with the reference. The caching allocator of PyTorch is off, so that memcheck knows where each
tensor ends. The exit status is 1 for a wrong result, and compute-sanitizer's own for its findings
with --error-exitcode.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

import torch

from tunefa.compile import languages
from tunefa.compile.contract import unordered, unread
from tunefa.measure import launches
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

WORKLOADS = (
    "fwd_b1_h4_kv2_q200_k333_d128_bf16_causal",
    "fwd_b2_h2_kv2_q130_k200_d64_fp16_full",
    "fwd_b1_h2_kv2_q100_k300_d256_bf16_causal",
    "fwd_b1_h2_kv2_q100_k1200_d64_e4m3_causal",
    "fwd_b1_h2_kv1_q100_k1200_d128_e4m3_full",
    "fwd_b1_h2_kv2_q100_k1200_d128_e4m3_causal_fast",
    "fwd_b1_h2_kv2_q100_k1200_d256_e4m3_causal",
    "fwd_b1_h4_kv2_q200_k200_d128_bf16_causal_w51",
    "bwd_b1_h2_kv2_q256_k256_d64_bf16_causal",
    "bwd_b1_h2_kv2_q256_k256_d128_bf16_causal",
    "bwd_b1_h2_kv2_q256_k256_d128_bf16_full",
    "bwd_b2_h2_kv2_q200_k333_d64_bf16_causal",
    "bwd_b2_h2_kv2_q333_k200_d128_fp16_causal",
    "bwd_b1_h4_kv1_q300_k300_d128_bf16_causal",
    "bwd_b1_h2_kv2_q200_k200_d192_bf16_causal",
    "bwd_b1_h2_kv2_q200_k200_d256_bf16_causal",
    "bwd_b1_h2_kv2_q200_k200_d80_bf16_full",
    "bwd_b1_h2_kv2_q300_k300_d128_bf16_causal_w51",
    "bwd_b3_h2_kv2_q200_k200_d128_bf16_causal_varlen",
    "bwd_b1_h2_kv2_q300_k300_d128_bf16_causal_deterministic",
    "bwd_b2_h80_kv80_q50_k60_d64_bf16_causal",
    "bwd_b2_h80_kv80_q50_k60_d128_bf16_causal",
    "decode_b3_h8_kv2_q1_k900_d128_bf16_causal_varlen",
    "decode_b3_h8_kv2_q1_k900_d128_bf16_causal_page16_varlen",
    "decode_b2_h4_kv2_q3_k700_d64_fp16_causal_w200_page64_sinks_varlen",
    "decode_b2_h4_kv1_q1_k300_d256_bf16_causal_varlen",
    "decode_b90_h8_kv4_q1_k700_d128_bf16_causal_varlen",
    "decode_b2_h8_kv2_q1_k900_d128_bf16_causal_page64_e4m3cache_varlen",
    "decode_b5_h8_kv2_q2_k900_d128_bf16_causal_page16_prefix_varlen",
    "decode_b3_h20_kv1_q2_k300_d576_dv512_bf16_causal_page16_mla_varlen",
)
"""Masks, head dimensions, groups, and lengths that no tile divides; few CTAs, because racecheck
makes a kernel hundreds of times slower. Of 160 heads, a persistent CTA takes more than one tile."""


OPS = ("fwd", "bwd", "decode")


def own_kernels() -> list[str]:
    """The kernels of these ops for NVIDIA GPUs that are no library."""
    found = [kernels.load(name) for name in kernels.names()]
    ours = [each for each in found if not each.is_library and each.language != "ascend"]
    return [each.name for each in ours if each.op in OPS]


def cases(
    names: Sequence[str], target: Target, workloads: Sequence[str] = WORKLOADS
) -> Iterator[Case]:
    """Yields what each of the kernels serves of these workloads."""
    for name in names:
        for text in workloads:
            case = Case(kernels.load(name), Workload.parse(text), target)
            if case.why_not() is None:
                yield case


def wrong(case: Case, gate: Gate) -> str | None:
    """Launches a kernel's default config twice; returns what is wrong with the results."""
    probe = gate.probe(case.workload, unread(case.kernel))
    config = case.default()
    if not case.kernel.module.is_aligned(probe.tensors):
        others = case.kernel.unaligned
        if isinstance(others, str):
            return None
        config = {**config, **others}
    launch = launches.launch(case, config, probe.tensors)
    found = gate.compare(launch, probe, unordered(case, config))
    torch.cuda.synchronize()
    return None if found.passed and found.repeatable else found.reason


def main() -> None:
    """Launches all, prints a line for each, and exits with 1 if one is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sanitized",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kernel", action="append", choices=own_kernels(), help="only this one; may be repeated"
    )
    parser.add_argument(
        "--workload", action="append", choices=WORKLOADS, help="only this one; may be repeated"
    )
    options = parser.parse_args()
    target, gate = Target.named(torch.cuda.get_device_name()), Gate("cuda")
    failed = False
    for case in cases(options.kernel or own_kernels(), target, options.workload or WORKLOADS):
        if languages.without_compiler([case.kernel], target.arch):
            continue
        reason = wrong(case, gate)
        failed |= reason is not None
        print(f"{case.kernel.name} {case.workload}: {reason or 'right'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # PyTorch reads it at the first allocation
    main()
