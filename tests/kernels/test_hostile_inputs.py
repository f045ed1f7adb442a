"""The kernels in CUDA C++ pass the gate's hostile inputs on the CPU; a planted mistake does not.

The kernels in Triton do so in tests/measure/test_gate_interpreter.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import cuda_on_cpu
from tests.support.launch_specs import spec_of
from tunefa.measure import check
from tunefa.measure.gate import Probe
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")

SM80, SM90 = (kernels.load(f"attention_fwd_cuda_{arch}") for arch in ("sm80", "sm90"))


def judged(kernel: Any, text: str, change: Any, folder: Path) -> Any:
    """The verdict of the kernel's default, with a threshold, on the gate's inputs."""
    workload = Workload.parse(text)
    config = {**spec_of(kernel, workload, {}).case.default(), "RESCALE_THRESHOLD": 8}
    shape = check.ragged(workload, config)
    run = cuda_on_cpu.compiled(kernel, shape, config, folder, change)
    probe = Probe.of(shape, "mixed", "cpu")
    run(probe.tensors, shape, sms=4)
    return probe.judge()


@pytest.mark.parametrize(
    ("kernel", "text"),
    [(SM80, "h2_q8192_d64_bf16"), (SM90, "h2_q8192_d64_fp16"), (SM90, "h2_q8192_d64_e4m3_full")],
    ids=["sm80", "sm90", "sm90 e4m3"],
)
def test_right_kernels_pass(kernel: Any, text: str, tmp_path: Path) -> None:
    found = judged(kernel, text, str, tmp_path)
    assert found.passed, found.reason


def test_an_output_that_is_not_rescaled_is_named(tmp_path: Path) -> None:
    """Normal inputs rarely exceed RESCALE_THRESHOLD, so that nothing is rescaled there."""

    def never_rescaled(source: str) -> str:
        product = "out[m][o][i] *= row_scale[m][i / 2];"
        assert product in source
        return source.replace(product, ";")

    found = judged(SM80, "h2_q8192_d64_fp16_full", never_rescaled, tmp_path)
    assert found.error < 1e-3, "normal inputs do not show it"
    assert not found.passed and "in batch 1 is off by" in found.reason and "where" in found.reason
