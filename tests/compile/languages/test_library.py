"""tunefa/compile/languages/library.py: a library's call as a launch, and what it has no part in."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.support import library_kernel
from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import measured
from tunefa.compile import languages, provenance
from tunefa.compile.contract import CompileError, unread
from tunefa.compile.languages import library
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError
from tunefa.measure import launches, ops
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload
from tunefa.store.record import Record

WORKLOAD = Workload.parse("bwd_b2_h2_q40_d32_fp32_causal")
H200 = Target.named("h200")


def case_of(kernel: kernels.Kernel) -> Case:
    return Case(kernel, WORKLOAD, H200)


def prepared(case: Case, tensors: Any) -> Any:
    compiled = library.compile(case, {})
    return library.prepare(ops.of(WORKLOAD).launch_spec(case, {}), compiled, tensors)


def test_a_launch_copies_into_the_outputs_and_its_results_are_new(own_kernels: OwnKernels) -> None:
    case = case_of(library_kernel.add(own_kernels, "lib_copies"))
    tensors = ops.of(WORKLOAD).tensors(WORKLOAD, "cpu", seed=0)
    before = [x.clone() for x in tensors[:7]]
    launch = prepared(case, tensors)
    results = launch.results(*tensors)
    assert all(x.isnan().all() for x in tensors[7:])
    launches.timed(launch, tensors)()
    assert all(x.isnan().all() for x in tensors[7:]), "what is timed copies nothing"
    launch(*tensors)
    for mine, made in zip(tensors[7:], results, strict=True):
        assert torch.equal(mine, made) and mine.data_ptr() != made.data_ptr()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=False))


def test_its_outputs_are_those_of_the_ops() -> None:
    assert {op: ops.load(op).OUTPUTS for op in library.OUTPUTS} == library.OUTPUTS
    assert {each.op for each in map(kernels.load, kernels.names()) if each.is_library} == set(
        library.OUTPUTS
    )


def test_the_gate_checks_it_without_what_it_does_not_read(own_kernels: OwnKernels) -> None:
    case = case_of(library_kernel.add(own_kernels, "lib_checked"))
    shape = launches.shape_to_check(case, {})
    assert shape.seqlen_q == shape.seqlen_k and case.kernel.why_not(shape, case.arch) is None
    gate = Gate("cpu")
    for inputs, passes in ((unread(case.kernel), True), ((), False)):
        probe = gate.probe(shape, inputs)
        launch = prepared(Case(case.kernel, shape, H200), probe.tensors)
        found = gate.compare(launches.bound(launch, probe.tensors), probe)
        assert found.repeatable and found.passed is passes, found.reason


def test_it_compiles_nothing_and_says_its_version(own_kernels: OwnKernels) -> None:
    kernel = library_kernel.add(own_kernels, "lib_versions")
    compiled = library.compile(case_of(kernel), {})
    assert compiled.resources == Resources() and compiled.seconds == 0.0
    assert provenance.of(kernel)["compiler"] == f"torch {torch.__version__}"
    assert provenance.quick(kernel)["compiler"] == f"torch {torch.__version__}"


def test_a_library_that_is_missing_is_named(own_kernels: OwnKernels) -> None:
    source = library_kernel.SOURCE.replace('return f"torch {torch.__version__}"', "return None")
    kernel = library_kernel.add(own_kernels, "lib_missing", source)
    says = "PyTorch's attention on the CPU is not installed"
    assert languages.without_compiler([kernel], H200.arch) == {kernel.name: says}
    with pytest.raises(TunefaError, match=says):
        library.compile(case_of(kernel), {})
    assert provenance.quick(kernel)["compiler"] is None


def test_what_the_library_refuses_does_not_compile(own_kernels: OwnKernels) -> None:
    case = case_of(library_kernel.add(own_kernels, "lib_refuses"))
    tensors = list(ops.of(WORKLOAD).tensors(WORKLOAD, "cpu"))
    tensors[0] = tensors[0][..., :5]
    with pytest.raises(
        CompileError, match="PyTorch's attention on the CPU refuses bwd_b2_h2_kv2_q40"
    ):
        prepared(case, tensors)


def test_it_has_no_part_where_there_is_no_device(own_kernels: OwnKernels) -> None:
    kernel = library_kernel.add(own_kernels, "lib_apart")
    says = "it calls PyTorch's attention on the CPU, whose time only a device tells"
    assert languages.without_binary([kernel]) == {kernel.name: says}
    assert not languages.has_interpreter("library")
    with pytest.raises(TunefaError, match="no kernel serves bwd_b2_h2_kv2_q40"):
        kernels.serving(WORKLOAD, H200.arch)
    for how in ({"libraries": True}, {"only": [kernel.name]}):
        asked: Any = how
        assert [k.name for k in kernels.serving(WORKLOAD, H200.arch, **asked)] == [kernel.name]
    assert kernel.priority(WORKLOAD, H200.arch) == 1
    assert kernel.priority(WORKLOAD, Target.named("sm80").arch) == 5


@pytest.mark.parametrize(("version", "state"), [(None, "confirmed"), ("torch 1.0", "unconfirmed")])
def test_a_record_serves_with_its_version(
    own_kernels: OwnKernels, version: str | None, state: str
) -> None:
    kernel = library_kernel.add(own_kernels, f"lib_{state}")
    made = {**provenance.of(kernel), **({"compiler": version} if version else {})}
    record = measured(str(WORKLOAD), kernel=kernel.name, config={}, provenance=made)
    assert Record.from_dict(json.loads(json.dumps(record.to_dict())), "here").config == {}
    found = Installed().serving(record, H200)
    assert found.state == state
    assert not version or "torch 1.0, and this machine has" in found.why
