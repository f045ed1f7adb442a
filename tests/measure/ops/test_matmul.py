"""tunefa/measure/ops/matmul.py: right products pass, and products that are wrong in usual ways do
not."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tunefa.measure.gate import Gate, Probe
from tunefa.measure.ops import matmul as op
from tunefa.spec.matmul import own
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32, "num_stages": 4}


@functools.cache
def probe(text: str) -> Probe:
    return Probe.of(Workload.parse(text), "mixed", "cpu", torch.float64)


def product(made: Probe) -> Any:
    a, b, _ = made.tensors
    return a.double() @ b.double()


TEXTS = [
    f"matmul_m113_n70_k{k}_{dtype}_{layout}"
    for k in (1, 300)
    for dtype in ("bf16", "fp16", "fp32")
    for layout in ("nn", "nt", "tn", "tt")
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_rounded_product_passes(text: str) -> None:
    made = probe(text)
    made.tensors[2].copy_(product(made))
    found = made.judge()
    assert found.passed and not found.strayed, found.reason
    assert made.tensors[2].isnan().all(), "outputs are NaN again"


@pytest.mark.parametrize("k", [2048, 4096, 20000])
def test_fp16_does_not_overflow_however_long_the_sums(k: int) -> None:
    """A search of k = 4,096 on an H200 called every config wrong, as the right product was Inf."""
    made = probe(f"matmul_m20_n80_k{k}_fp16")
    right = product(made)
    assert right.abs().max() < torch.finfo(torch.float16).max
    assert right.abs().max() > 1000, "columns of outliers are still there"
    made.tensors[2].copy_(right)
    assert made.judge().passed


@pytest.mark.parametrize("letter", ["nn", "tt"])
def test_tensors_have_the_layout(letter: str) -> None:
    a, b, c = op.tensors(Workload.parse(f"matmul_m4_n6_k8_{letter}"), "cpu", seed=1)
    assert (a.shape, b.shape, c.shape) == ((4, 8), (8, 6), (4, 6))
    expected = ((8, 1), (6, 1)) if letter == "nn" else ((1, 4), (1, 8))
    assert (a.stride(), b.stride()) == expected and c.stride() == (6, 1)
    again = op.tensors(Workload.parse(f"matmul_m4_n6_k8_{letter}"), "cpu", seed=1)
    assert torch.equal(a, again[0])


def skipped_tail(made: Probe) -> Any:
    a, b, _ = made.tensors
    return a[:, :-1].double() @ b[:-1].double()


def swapped_rows(made: Probe) -> Any:
    return product(made).roll(1, dims=0)


def summed_in_the_dtype(made: Probe) -> Any:
    a, b, c = made.tensors
    total = torch.zeros_like(c)
    for i in range(a.shape[1]):
        total += a[:, i : i + 1] * b[i : i + 1]
    return total


def one_column_left_out(made: Probe) -> Any:
    found = product(made)
    found[:, -1] = float("nan")
    return found


@pytest.mark.parametrize(
    "fault", [skipped_tail, swapped_rows, summed_in_the_dtype, one_column_left_out]
)
def test_usual_faults_are_found(fault: Any) -> None:
    made = probe("matmul_m113_n70_k300_fp16")
    made.tensors[2].copy_(fault(made))
    found = made.judge()
    assert not found.passed and found.row is not None
    assert "the output of row " in found.reason and "logsumexp" not in found.reason


def test_a_write_beside_the_output_is_found() -> None:
    made = Probe.of(Workload.parse("matmul_m40_n24_k16_bf16"), "mixed", "cpu")
    made.tensors[2].copy_(product(made))
    made.memories[2][0, 0] = 1.0
    found = made.judge()
    assert found.strayed and "writes to memory outside of its outputs" in found.reason


def test_memory_around_the_inputs_is_no_number() -> None:
    made = probe("matmul_m113_n70_k300_bf16_nt")
    for tensor, memory in zip(made.tensors[:2], made.memories[:2], strict=True):
        assert bool(tensor.isfinite().all())
        finite = int(memory.isfinite().sum())
        assert finite == tensor.numel() < memory.numel()


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("matmul_m4096_bf16", (160, 80, 160)),
        ("matmul_m4096_n4096_k4080_bf16", (160, 80, 176)),
        ("matmul_m1000_n1000_k1001_bf16", (161, 81, 177)),
    ],
)
def test_ragged_sizes_run_the_same_binary(text: str, sizes: tuple[int, ...]) -> None:
    workload = Workload.parse(text)
    found = own(op.ragged(workload, CONFIG))
    assert (found.m, found.n, found.k) == sizes
    assert found.is_aligned == own(workload).is_aligned
    tail = own(workload).k % CONFIG["BLOCK_K"] != 0
    assert (found.k % CONFIG["BLOCK_K"] != 0) == tail
    case = Case.from_names("matmul_triton", text, "sm80")
    config = {**case.default(), **CONFIG}
    variants = [case.kernel.module.variant(each, config) for each in (workload, found)]
    assert variants[0]["constants"] == variants[1]["constants"]


def test_the_limit_is_twice_the_error_of_torch_mm() -> None:
    gate, made = Gate("cpu"), probe("matmul_m113_n70_k300_fp16")
    own_error = made.expected.error(torch.mm(*made.tensors[:2]))
    assert gate.limit(made) == max(2 * own_error, op.OUT_ROUNDING["fp16"])
    assert gate.limit(probe("matmul_m113_n70_k300_fp32")) == op.TOLERANCE["fp32"]


def test_one_tf32_product_passes_for_fp32() -> None:
    made = probe("matmul_m113_n70_k300_fp32")
    a, b, c = made.tensors
    cut = [(each.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (a, b)]
    c.copy_(cut[0].double() @ cut[1].double())
    found = made.judge()
    assert found.passed and found.error > 1e-4, found.reason
