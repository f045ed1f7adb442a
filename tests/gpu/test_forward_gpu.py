"""benchmarks/forward/ on a device: peers that come with PyTorch compute the same as tunefa."""

from __future__ import annotations

import pytest

from benchmarks.forward import measure
from tests.support.gpu_kernels import seen_target, served
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "text",
    [
        "b2_h8_q512_d64_full",
        "b2_h8_kv2_q512_d128_causal",
        "b1_h4_q512_k1024_d64_fp16_causal",
        "b1_h4_q1024_d64_causal_w200",
        "b1_h4_q512_d72_causal",
    ],
)
def test_a_row_with_all_peers_of_pytorch(text: str) -> None:
    workload = Workload.parse(text)
    row = measure.measured("given", workload, ["cudnn", "fa2", "flex"], 3)
    served = {"tunefa", "fa2", "flex"}
    if workload.window_left is None and workload.seqlen_q == workload.seqlen_k:
        served.add("cudnn")
    assert row.tflops.keys() == served, row.left_out
    assert row.left_out.keys() == {"tunefa", "cudnn", "fa2", "flex"} - served
    assert min(row.tflops.values()) > 0
    assert row.chosen["kernel"]


def test_a_kernel_by_itself() -> None:
    workload = Workload.parse("b2_h8_kv2_q512_d128_causal")
    row = measure.measured("given", workload, ["fa2"], 3, "attention_fwd_cuda_sm80")
    assert row.tflops.keys() == {"tunefa", "fa2"}, row.left_out
    assert row.chosen["kernel"] == "attention_fwd_cuda_sm80"


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_row_of_packed_sequences(mask: str) -> None:
    workload = Workload.parse(f"b8_h4_q500_d64_{mask}_varlen")
    row = measure.measured("given", workload, ["cudnn", "fa2", "flex"], 3)
    assert row.tflops.keys() == {"tunefa", "fa2"}, row.left_out
    assert row.left_out.keys() == {"cudnn", "flex"}
    assert row.chosen["kernel"]


def test_a_kernel_by_itself_on_packed_sequences() -> None:
    workload = Workload.parse("b8_h8_kv2_q500_d128_causal_varlen")
    cases = served(workload)
    if not cases:
        pytest.skip(f"no kernel serves packed sequences on {seen_target().arch.name}")
    name = cases[0].kernel.name
    row = measure.measured("given", workload, [], 3, name)
    assert row.tflops.keys() == {"tunefa"}, row.left_out
    assert row.chosen["kernel"] == name
