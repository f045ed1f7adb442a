"""The gate's hostile inputs on a CUDA device: each kernel's default of each shipped workload."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from tests.support.gpu_kernels import launched, seen_target, served
from tunefa import assets
from tunefa.compile import pool as compile_pool
from tunefa.measure import check
from tunefa.measure.gate import Gate, Probe
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload
from tunefa.store import results

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

MOST_ELEMENTS = 2**26
"""The largest q of workloads that are checked on their own shapes: more takes seconds."""
OTHERS = (
    "b5_h8_kv2_q900_d128_varlen",
    "b5_h8_kv2_q900_d64_w200_varlen",
    "b2_h8_kv2_q900_k1000_d128_w300_a40",
    "b2_h8_kv2_q900_k1000_d128_fp16_softcap",
    "b2_h8_kv2_q900_k1000_d64_e4m3_softcap",
    "b2_h8_kv2_q900_k1000_d80_fp16",
    "b2_h8_kv2_q300_k400_d64_fp32",
    "b2_h32_kv4_q3_k1000_d128",
)
"""Workloads of kinds that no record has; every kernel that serves one runs its default."""


def shipped() -> list[tuple[Case, dict[str, Any]]]:
    """The config of each shipped record of this GPU's arch, and the default of its kernel; then
    the defaults for OTHERS."""
    if not torch.cuda.is_available():
        return []
    target = seen_target()
    found: dict[str, tuple[Case, dict[str, Any]]] = {}
    for path in sorted(assets.root("results").glob("*.yaml")):
        for record in results.read(path):
            if record.arch != target.arch.name or record.kernel not in kernels.names():
                continue
            case = Case(kernels.load(record.kernel), record.workload, target)
            for config in (record.config, case.default()):
                # Of workloads that differ in lengths, batch and heads only, one will do.
                shape = check.ragged(record.workload, config)
                found[f"{record.kernel} {shape} {config}"] = (case, config)
    others = [(case, case.default()) for text in OTHERS for case in served(Workload.parse(text))]
    return [*found.values(), *others]


@pytest.fixture(scope="module")
def compiled() -> None:
    """Puts every binary in the cache, by as many processes as there are processors."""
    jobs = [
        (case.names, config, str(check.ragged(case.workload, config))) for case, config in shipped()
    ]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        list(pool.map(compile_pool._compile, *zip(*jobs, strict=True), chunksize=2))


@pytest.mark.usefixtures("compiled")
def test_shipped_records_and_defaults_pass_the_gate() -> None:
    gate, wrong, count = Gate("cuda"), [], 0
    for case, config in shipped():
        shape = check.ragged(case.workload, config)
        probe = gate.probe(shape)
        launch = launched(replace(case, workload=shape), config, probe.tensors)
        found = gate.compare(lambda: launch(*probe.tensors), probe)  # noqa: B023
        count += 1
        if not (found.passed and found.repeatable):
            wrong.append(f"{case.kernel.name} {config}: {found.reason}")
    assert count or seen_target().arch.name != "sm90"
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)


@pytest.mark.usefixtures("compiled")
def test_long_sequences_of_hostile_inputs() -> None:
    """The workloads' own shapes, where sums are long; one of each kernel and head dimension."""
    gate, wrong, seen = Gate("cuda"), [], set()
    for case, config in shipped():
        w = case.workload
        kind = (case.kernel.name, w.head_dim, w.dtype, w.causal, w.varlen, w.window_left is None)
        if w.batch * w.heads * w.seqlen_q * w.head_dim > MOST_ELEMENTS or kind in seen:
            continue
        seen.add(kind)
        probe = gate.large_probe(w, "hostile")
        launch = launched(case, config, probe.tensors)
        found = gate.compare(lambda: launch(*probe.tensors), probe)  # noqa: B023
        if not found.passed:
            wrong.append(f"{case.kernel.name} {config}: {found.reason}")
    assert not wrong, f"{len(wrong)} of {len(seen)}:\n" + "\n".join(wrong)


def test_pytorchs_attention_passes_the_rows_limits() -> None:
    """The limits are those of bf16, and not of the kernels here."""
    from tunefa.measure import sdpa

    shape = Workload.parse("b2_h8_kv2_q1000_k1111_d64_bf16")
    probe = Probe.of(shape, "mixed", "cuda")
    q, k, v, out, lse, *_ = probe.tensors
    inside = tuple(x.contiguous() for x in (q, k, v))
    sdpa.write(check.inputs(shape, (*inside, out, lse), shape.head_dim**-0.5), out)
    lse.copy_(probe.expected.lse)
    found = probe.expected.compare(out, lse)
    assert found.passed, found.reason
