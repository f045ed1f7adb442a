"""tunefa/compile/contract.py: what a launch is told of its case, and what is compiled of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunefa.compile.contract import Compiled, CompileError, LaunchSpec, unordered, variants
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload


def case(**functions: Any) -> Case:
    """One of a kernel whose file has these functions."""
    kernel: Any = SimpleNamespace(module=SimpleNamespace(**functions))
    return Case(kernel, Workload.parse("q16_d64"), Target.named("h200"))


def test_sms_are_the_seen_device_s_or_without_one_the_case_s() -> None:
    assert LaunchSpec(case(), {}, 0.5).sms == 132
    assert LaunchSpec(case(), {}, 0.5, seen_sms=66).sms == 66


def test_the_host_side_is_given_the_spec() -> None:
    def said(tensors: Any, spec: LaunchSpec) -> Any:
        return tensors, spec.workload.seqlen_q

    made = case(arguments=said, preprocess_arguments=said, scratch=said)
    spec = LaunchSpec(made, {}, 0.5)
    for function in (spec.arguments, spec.preprocess_arguments, spec.scratch):
        tensors: Any = [7]
        assert function(tensors) == ([7], 16)


@pytest.mark.parametrize(("said", "alone"), [({}, False), ({"SCRATCH_ALONE": True}, True)])
def test_a_kernel_alone_has_scratch_only_if_it_says_so(said: Any, alone: bool) -> None:
    spec = LaunchSpec(case(**said), {}, 0.5)
    assert spec.has_scratch(is_alone=False) and spec.has_scratch(is_alone=True) is alone


def test_resources_are_read_when_asked_for_and_once() -> None:
    read: list[int] = []

    def inspect() -> Resources:
        read.append(1)
        return Resources(registers=7)

    compiled = Compiled("binary", inspect, 0.5)
    assert read == []
    assert compiled.resources == compiled.resources == Resources(registers=7) and read == [1]


def test_a_config_that_does_not_compile_says_how_and_what_it_asks_for() -> None:
    plain = CompileError("ptxas says no")
    assert (str(plain), plain.outcome, plain.resources) == ("ptxas says no", "compile_failed", None)
    over = CompileError("UB overflow", "crashed", Resources(ub_bytes=9))
    assert (over.outcome, over.resources) == ("crashed", Resources(ub_bytes=9))


@pytest.mark.parametrize("aligned", [True, False])
def test_what_is_compiled_is_the_kernel_and_what_runs_before_and_after(aligned: bool) -> None:
    def variant(workload: Any, config: Any, aligned: bool) -> Any:
        return {"function": "main", "aligned": aligned}

    main = {"function": "main", "aligned": aligned}
    assert variants(case(variant=variant), {}, aligned) == {"binary": main}
    first = {"function": "first"}
    both = case(variant=variant, preprocess=lambda workload, config: first)
    assert variants(both, {}, aligned) == {"binary": main, "preprocess": first}
    last = {"function": "last"}
    three = case(
        variant=variant,
        preprocess=lambda workload, config: first,
        postprocess=lambda workload, config: last,
    )
    assert [*variants(three, {}, aligned).values()] == [main, first, last]
    neither = case(variant=variant, preprocess=lambda workload, config: None)
    assert variants(neither, {}, aligned) == {"binary": main}
    only_last = case(variant=variant, postprocess=lambda workload, config: last)
    assert variants(only_last, {}, aligned) == {"binary": main, "postprocess": last}


def test_the_outputs_without_an_order_are_what_the_kernel_says() -> None:
    def dq_if_split(workload: Any, config: Any) -> Any:
        return ["dq"] if config["SPLIT"] else []

    assert unordered(case(), {}) == ()
    sums = case(unordered=dq_if_split)
    assert unordered(sums, {"SPLIT": 1}) == ("dq",) and unordered(sums, {"SPLIT": 0}) == ()
