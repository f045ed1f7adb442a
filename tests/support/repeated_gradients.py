"""Deterministic gradients on a GPU that other streams use, too, in a process that may be killed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from benchmarks.gradient_errors import workloads
from tests.support.gpu_kernels import seen_target
from tests.support.random_problems import compile_all
from tunefa.compile.contract import Launch
from tunefa.measure import launches, ops
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

KERNEL = "attention_bwd_cuda_sm90"
CUDA: Any = torch.cuda  # parts of it have no types


def in_time(seconds: float, work: Callable[..., None], *given: Any) -> None:
    """Does the work in a new process. Raises AssertionError where that fails or takes longer: CTAs
    that wait for each other for ever would otherwise hang the tests."""
    process = get_context("spawn").Process(target=work, args=given)
    process.start()
    process.join(seconds)
    ended = not process.is_alive()
    if not ended:
        process.kill()
        process.join(30)
    assert ended, f"{work.__name__}{given} has not ended in {seconds} s"
    assert process.exitcode == 0, f"{work.__name__}{given} failed, see its traceback"


def case_of(workload: Workload) -> Case:
    """The kernel's case, which it must serve."""
    case = Case(kernels.load(KERNEL), workload, seen_target())
    assert case.why_not() is None
    return case


def launched(workload: Workload, changes: Config, seed: int = 0) -> tuple[Launch, tuple[Any, ...]]:
    """The launch of the default with some parameters changed, and its tensors."""
    case = case_of(workload)
    config = {**case.default(), **changes}
    assert case.refusal(config) is None
    tensors = ops.of(workload).tensors(workload, "cuda", seed)
    return launches.prepared(case, config, tensors), tensors


def gradients(launch: Launch, tensors: tuple[Any, ...], workload: Workload) -> list[Tensor]:
    """dq, dk and dv, whose memory is full of NaN before."""
    outputs = tensors[ops.of(workload).OUTPUTS]
    for each in outputs:
        each.fill_(torch.nan)
    launch(*tensors)
    return [each.clone() for each in outputs]


def equal_bits(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether all are equal to the last bit; what is not written is NaN in both."""
    both = zip(some, others, strict=True)
    return all(a.view(torch.int16).equal(b.view(torch.int16)) for a, b in both)


def repeat_all(cases: Sequence[tuple[str, Config]], runs: int) -> None:
    """Raises AssertionError where a run of a case differs from the first."""
    compile_all([case_of(Workload.parse(text)) for text, _ in cases])
    for text, changes in cases:
        repeat(Workload.parse(text), changes, runs)


def repeat(workload: Workload, changes: Config, runs: int) -> None:
    """Raises AssertionError where a run differs from the first: alone, beside products of matrices
    on another stream, and beside the same kernel on a third one."""
    launch, tensors = launched(workload, changes)
    other, others = launched(workload, changes, seed=1)
    first = gradients(launch, tensors, workload)
    first_other = gradients(other, others, workload)
    assert all(each.isfinite().all() for each in (*first, *first_other))
    busy, beside = CUDA.Stream(), CUDA.Stream()
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    CUDA.synchronize()
    for run in range(runs):
        with CUDA.stream(busy):
            for _ in range(run % 5):
                square @ square
        with CUDA.stream(beside):
            made_other = gradients(other, others, workload)
        made = gradients(launch, tensors, workload)
        CUDA.synchronize()
        for found, wanted in ((made, first), (made_other, first_other)):
            assert equal_bits(found, wanted), f"{workload} {changes}: run {run} has other bits"


def early_all(cases: Sequence[tuple[str, Config]], runs: int) -> None:
    """Raises AssertionError where the kernel after, which writes a part of dQ as soon as that is
    finished, writes something else than it does when all is."""
    for text, changes in cases:
        early(Workload.parse(text), changes, runs)


def early(workload: Workload, changes: Config, runs: int) -> None:
    """Raises AssertionError where a run has other gradients than one without EARLY_POSTPROCESS, but
    for the last bits: after other kernels of the stream or alone, and beside products of matrices.
    """
    plain, tensors = launched(workload, {**changes, "EARLY_POSTPROCESS": 0})
    right = gradients(plain, tensors, workload)
    launch, _ = launched(workload, {**changes, "EARLY_POSTPROCESS": 1})
    busy, square = CUDA.Stream(), torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for run in range(runs):
        if run % 3 == 0:
            CUDA.synchronize()
        with CUDA.stream(busy):
            for _ in range(run % 4):
                square @ square
        made = gradients(launch, tensors, workload)
        for found, wanted in zip(made, right, strict=True):
            there = wanted.isfinite()  # rows of no packed sequence are not written
            off = (found.double() - wanted.double())[there].norm() / wanted.double()[there].norm()
            assert off <= 1e-3, f"{workload} {changes}: run {run} is {float(off):.1e} off"


def random_workloads(count: int) -> list[Workload]:
    """The first ones of `benchmarks.gradient_errors` that the kernel serves, deterministic."""
    kernel, arch = kernels.load(KERNEL), seen_target().arch
    made = (replace(each, deterministic=True) for each in workloads())
    served = (each for each in made if kernel.why_not(each, arch) is None)
    return list(itertools.islice(served, count))


def right(count: int) -> None:
    """Raises AssertionError where random gradients are wrong, or two launches differ."""
    gate, wrong = Gate("cuda"), []
    chance, cases = random.Random(0), list(map(case_of, random_workloads(count)))
    compile_all(cases)
    for case in cases:
        config = {**case.default(), "L2_SECTION_HEADS": chance.choice([1, 2, 64])}
        probe = gate.probe(case.workload)
        if not case.kernel.module.is_aligned(probe.tensors):
            continue
        launch = launches.launch(case, config, probe.tensors)
        found = gate.compare(launch, probe)
        if not (found.passed and found.repeatable):
            wrong.append(found.reason)
    assert not wrong, f"{len(wrong)} of {count} are wrong, first {wrong[:3]}"


def soak(count: int) -> None:
    """Launches random problems on three streams at the same time, without a wait between them, and
    raises AssertionError where a second round has other bits."""
    chosen = random_workloads(count)
    compile_all(list(map(case_of, chosen)))
    made = [(*launched(each, {}), each) for each in chosen]
    streams = [CUDA.Stream() for _ in range(3)]
    CUDA.synchronize()

    def round_of(seed: int) -> dict[int, list[Tensor]]:
        numbers = list(range(len(made)))
        random.Random(seed).shuffle(numbers)
        found = {}
        for place, number in enumerate(numbers):
            with CUDA.stream(streams[place % 3]):
                found[number] = gradients(*made[number])
        CUDA.synchronize()
        return found

    first = round_of(0)
    for seed in range(1, 6):
        for number, again in round_of(seed).items():
            assert equal_bits(again, first[number]), f"{chosen[number]} has other bits"
