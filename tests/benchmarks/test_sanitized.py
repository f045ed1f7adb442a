"""benchmarks/sanitized.py: which kernels run on which workloads."""

from __future__ import annotations

from benchmarks import sanitized
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload


def test_workloads_are_small() -> None:
    for text in sanitized.WORKLOADS:
        workload = Workload.parse(text)
        assert str(workload) == text and workload.op in sanitized.OPS
        assert workload.batch * workload.heads * workload.seqlen_q * workload.seqlen_k < 2**19


def test_every_own_kernel_runs_some_and_every_workload_runs() -> None:
    names = sanitized.own_kernels()
    found = list(sanitized.cases(names, Target.named("NVIDIA H200")))
    assert {case.kernel.name for case in found} == set(names) >= {"attention_bwd_triton"}
    assert {str(case.workload) for case in found} == set(sanitized.WORKLOADS)
    assert not any(case.kernel.is_library for case in found)


def test_one_workload_of_one_kernel() -> None:
    text = next(text for text in sanitized.WORKLOADS if text.startswith("decode_b90"))
    found = list(
        sanitized.cases(["attention_decode_cuda_sm90"], Target.named("NVIDIA H200"), [text])
    )
    assert [str(case.workload) for case in found] == [text]
