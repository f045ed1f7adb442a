"""Matrix products on the device that is there, launched as a search launches them."""

from __future__ import annotations

import random

import pytest
from click.testing import CliRunner

from tunefa.cli import main
from tunefa.compile.contract import CompileError
from tunefa.measure import launches, ops
from tunefa.measure.gate import Gate
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store import results as store

pytestmark = pytest.mark.gpu

KERNEL = kernels.load("matmul_triton")
TEXTS = [
    "matmul_m4096_bf16",
    "matmul_m1024_n2048_k512_fp16_nt",
    "matmul_m1024_n512_k2048_bf16_tn",
    "matmul_m512_fp16_tt",
    "matmul_m1024_fp32",
    "matmul_m1024_fp32_tt",
    "matmul_m1000_n77_k300_bf16",
    "matmul_m512_n512_k8192_fp16",
    "matmul_m333_n1000_k129_fp16_tn",
    "matmul_m1_n4096_k4096_bf16_nt",
]


def target() -> Target:
    """The device of this machine."""
    import torch

    from tunefa.runtime.chip import Chip

    chip = Chip.of(torch.device("cuda", torch.cuda.current_device()))
    assert chip.target is not None, chip.why_not
    return chip.target


@pytest.mark.parametrize("text", TEXTS)
def test_the_default_and_random_configs_are_right(text: str) -> None:
    case = Case(KERNEL, Workload.parse(text), target())
    gate, op, wrong = Gate("cuda"), ops.of(case.workload), list[str]()
    configs = case.feasible().configs
    ran = 0
    for config in (case.default(), *random.Random(text).sample(configs, 12)):
        small = gate.probe(op.ragged(case.workload, config))
        for probe in (small, gate.large_probe(case.workload, "mixed")):
            there = Case(KERNEL, probe.shape, case.target)
            try:
                launch = launches.launch(there, config, probe.tensors)
            except CompileError:  # it needs more than the device has
                assert config != case.default()
                continue
            found = gate.compare(launch, probe)
            ran += 1
            if not (found.passed and found.repeatable):
                wrong.append(f"{config}: {found.reason}")
    assert not wrong, f"{len(wrong)} of {ran}:\n" + "\n".join(wrong)
    assert ran > 10


def test_torch_mm_passes_the_limits_of_rows() -> None:
    """The limits are those of the dtypes, and not of the kernel here."""
    import torch

    for dtype in ("bf16", "fp16", "fp32"):
        probe = Gate("cuda").large_probe(Workload.parse(f"matmul_m1000_{dtype}"), "mixed")
        a, b, c = probe.tensors
        torch.mm(a, b, out=c)
        found = probe.expected.compare(c)
        assert found.passed, found.reason


def test_offsets_pass_2_to_the_31() -> None:
    """C of 2^31 elements and more: the last rows are right too."""
    import torch

    workload = Workload.parse("matmul_m69632_n32768_k64_fp16")
    case = Case(KERNEL, workload, target())
    if torch.cuda.mem_get_info()[0] < 3 * workload.io_bytes:
        pytest.skip("too little free memory")
    a, b, c = ops.of(workload).tensors(workload, "cuda", seed=0)
    launches.launch(case, case.default(), (a, b, c))()
    right = a[-256:].double() @ b.double()
    assert ((c[-256:].double() - right).norm() / right.norm()).item() < 1e-3


def test_a_search_measures_and_its_record_is_the_best_choice() -> None:
    text = "matmul_m1024_n1024_k1024_fp16"
    done = CliRunner().invoke(main, ["search", "-w", text, "--budget", "30s", "--mode", "graph"])
    assert done.exit_code == 0, done.output
    workload = Workload.parse(text)
    tensors = ops.of(workload).tensors(workload, "cuda", seed=0)
    choice, launch = launches.best(store.default_store(), workload, target(), tensors)
    assert choice.how == "exact" and choice.record is not None
    assert choice.record.objective == "measured" and choice.record.certificate is not None
    launch()
    a, b, c = tensors
    right = a.double() @ b.double()
    assert ((c.double() - right).norm() / right.norm()).item() < 1e-3
