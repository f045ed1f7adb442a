"""tunefa/search/model_process.py: the same configs and times from a process of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tunefa.compile.workers import ProcessLost, Workers
from tunefa.costmodel.estimate import estimates
from tunefa.search import model_process
from tunefa.search.compiled_before import compiler_sees
from tunefa.search.model_process import ModelProcess
from tunefa.spec import kernel as kernels
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

CASES = [
    Case(kernels.load(kernel), Workload.parse(text), Target.named(target))
    for kernel, text, target in (
        ("attention_fwd_cuda_sm80", "b2_h8_kv2_q1024_d64", "sm80"),
        ("attention_fwd_cuda_sm90", "b1_h8_q300_d256_e4m3_full", "h200"),
        ("attention_fwd_cudnn", "b2_h8_kv2_q1024_d64", "h200"),
    )
]


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(1) as made:
        yield made


def alike(found: Feasible, other: Feasible) -> bool:
    return list(found.configs) == list(other.configs) and found.refused == other.refused


def test_configs_and_times_are_those_of_this_process(workers: Workers) -> None:
    model = ModelProcess(workers)
    for case in CASES:
        (found,), own = model.feasible([case]), case.feasible()
        assert alike(found, own)
        assert [*map(list, found.configs)] == [*map(list, own.configs)], "the order of parameters"
        expected = [each.time_us for each in estimates(case, own.configs)]
        assert model.expected_us(case, found) == expected
    assert {"_listed", "_timed"} <= set(workers.ran_s), "the process has done it"


def test_a_kernel_stays_with_its_process_and_may_be_begun_before() -> None:
    with Workers(1) as first, Workers(1) as second:
        model = ModelProcess(first, second)
        model.begin(CASES)
        found = model.feasible(CASES)
        assert all(alike(each, case.feasible()) for each, case in zip(found, CASES, strict=True))
        for case, own in zip(CASES, found, strict=True):
            expected = [each.time_us for each in estimates(case, own.configs)]
            assert model.expected_us(case, own) == expected
        third = ("attention_fwd_cuda_sm90", str(CASES[1].workload), CASES[1].target)
        held = second.submit(_keeps, (third,), 30.0).result(), first.submit(_keeps, (third,), 30.0)
        assert (held[0], held[1].result()) == (True, False)
        assert {task for task, _ in model._begun} == {"_timed", "_seen"}, "lists are not kept"


def test_it_says_whether_times_are_known_and_begins_with_them() -> None:
    with Workers(1) as workers:
        model, held = ModelProcess(workers), threading.Event()
        assert not model.has_times(CASES[0]), "it has just begun"
        (begun,) = model._begun.values()
        begun.add_done_callback(lambda _: held.set())
        assert held.wait(30.0) and model.has_times(CASES[0])
        (found,) = model.feasible(CASES[:1])
        assert len(model.expected_us(CASES[0], found)) == len(found.configs)


def test_it_says_what_the_compiler_sees_once_that_is_known() -> None:
    with Workers(1) as workers:
        model, held = ModelProcess(workers), threading.Event()
        case = CASES[0]
        assert model.compiler_sees(case) is None, "it was not asked"
        model.begin([case])
        model._begun["_seen", model_process._named(case)].add_done_callback(lambda _: held.set())
        assert held.wait(60.0)
        assert model.compiler_sees(case) == compiler_sees(case, case.feasible().configs)


def test_what_was_begun_for_a_workload_can_be_dropped() -> None:
    with Workers(1) as workers:
        model = ModelProcess(workers)
        model.begin(CASES)
        model.forget(CASES[0].workload)
        others = {str(case.workload) for case in CASES} - {str(CASES[0].workload)}
        assert {workload for _, (_, workload, _) in model._begun} == others
        assert alike(model.feasible(CASES[:1])[0], CASES[0].feasible())


def _keeps(named: model_process._Named) -> bool:
    """Whether this process has listed these configs before."""
    before = model_process._feasible.cache_info().hits
    model_process._feasible(named)
    return model_process._feasible.cache_info().hits > before


def test_a_lost_process_costs_nothing_but_time(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_listed", "_timed", "_seen"):
        monkeypatch.setattr(model_process, name, _dies)
    model, case = ModelProcess(workers), CASES[0]
    with pytest.raises(ProcessLost):
        workers.submit(_dies, (0,), 30.0).result()
    (found,) = model.feasible([case])
    assert alike(found, case.feasible())
    expected = [each.time_us for each in estimates(case, found.configs)]
    assert model.expected_us(case, found) == expected
    assert model.compiler_sees(case) is None


def _dies(_: object) -> None:
    os._exit(3)
