"""kernels/attention_fwd_ascend.py: numbers in Triton's interpreter, memory by the real compiler."""

from __future__ import annotations

import random

import pytest

from tests.support.ascend_compiler import THERE, choose, needs_compiler, versions_there
from tests.support.ascend_interpreted import KERNEL
from tests.support.processes import interpreted
from tunefa.compile import languages
from tunefa.compile.ascend import toolchain
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.tiling import NpuTiling
from tunefa.spec.workload import Workload

B3 = archs.npu(archs.load("ascend910b3"))
WORKLOADS = [
    Workload.parse(f"h8_q2048_d{head_dim}_{dtype}_{mask}")
    for head_dim in (64, 128, 256)
    for dtype in ("fp16", "bf16")
    for mask in ("full", "causal")
]
each_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=str)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The shipped one, with the user's toolchain."""
    monkeypatch.setattr(toolchain, "folder", lambda: THERE)
    return kernels.load(KERNEL)


def test_numbers_are_right() -> None:
    if reason := languages.load("triton").why_no_interpreter():
        pytest.skip(reason)
    cases = interpreted("ascend_interpreted")
    wrong = [case for case in cases if not case["passed"]]
    assert len(cases) > 20 and not wrong, f"{len(wrong)} of {len(cases)}, first {wrong[:1]}"


def test_it_serves_npus_alone() -> None:
    kernel = kernels.load(KERNEL)
    assert kernel.why_not(WORKLOADS[0], archs.load("sm90")) == (
        "it runs on chips of huawei, not of nvidia"
    )
    window = Workload.parse("h8_q2048_d64_fp16_causal_w128")
    assert "not support sliding windows" in (kernel.why_not(window, B3) or "")
    assert [each.name for each in kernels.serving(WORKLOADS[0], B3)] == [KERNEL]


@needs_compiler
@each_workload
def test_the_default_fits(kernel: Kernel, workload: Workload) -> None:
    case = Case(kernel, workload, Target.named("ascend910b3"))
    found = languages.load("ascend").compile(case, case.default()).binary
    assert found.status == "fits" and not found.changed


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("version", versions_there())
@each_workload
def test_bounds_never_exceed_what_the_compiler_takes_and_some_are_exact(
    kernel: Kernel, workload: Workload, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 tiles a version. With room for every buffer, L1 and L0C are what the formulas say: those
    of fp16 are those of bf16, of which more tiles are compiled."""
    choose(version, monkeypatch)
    language, space = languages.load("ascend"), kernel.space.untimed()
    configs = space.feasible(workload, B3).configs
    count = 4 if workload.dtype == "bf16" else 1
    for config in random.Random(str(workload)).sample(configs, count):
        bounds = space.estimate(config, workload, B3)
        tiling, _ = space.tiling_as_and_estimate(NpuTiling, config, workload, B3)
        found = language.compiler_report(kernel, kernel.module.variant(workload, config), B3)
        assert found.status in ("fits", "overflow"), found
        for name, memory in found.memories.items():
            taken = memory.required_bytes or memory.peak_bytes or 0
            assert bounds[f"{name}_needed"] <= taken, (config, name, memory)
            expected = getattr(tiling, f"{name}_bytes")
            whole = found.status == "fits" and not found.changed and name != "ub"
            if whole and expected < B3.capacities[name]:
                assert taken == expected, (config, name, memory)
