"""The calls that tunefa computes: records, measured defaults, the model's word, short kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tunefa.assets import root
from tunefa.integrations import sdpa_choice
from tunefa.integrations.sdpa_choice import is_taken
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.choose import choose
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store.results import Store

CUDA = torch.device("cuda", 0)
LONG = Workload.parse("b4_h32_kv8_q8192_d128_bf16_causal")


class Chips:
    """The chip that PyTorch's devices are taken for."""

    def __init__(self) -> None:
        self.target: Target | None = Target.named("NVIDIA H200")

    def of(self, device: torch.device) -> Chip:
        return Chip("a chip", self.target)


@pytest.fixture
def chips(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chips]:
    made = Chips()
    monkeypatch.setattr(sdpa_choice, "Chip", made)
    sdpa_choice._taken_us.cache_clear()
    yield made
    sdpa_choice._taken_us.cache_clear()


def chosen(
    kernel: str, how: Any = "default", workload: Workload = LONG, arch: str = "NVIDIA H200"
) -> Chosen:
    config: dict[str, Any] = {}
    if kernel != "pytorch" and not kernels.load(kernel).is_library:
        config = Case(kernels.load(kernel), workload, Target.named(arch)).default()
    return Chosen(kernel, config, how, "", workload)


def test_what_pytorch_computes_stays_there(chips: Chips) -> None:
    assert not is_taken(chosen("pytorch", "pytorch"), CUDA, "fa2")
    chips.target = None
    assert not is_taken(chosen("attention_fwd_cuda_sm90"), CUDA, "fa2")


@pytest.mark.parametrize("rival", ["fa2", "cudnn"])
@pytest.mark.parametrize("how", ["exact", "nearest", "other-device", "default"])
def test_own_kernels_run_by_records_and_measured_defaults(
    chips: Chips, how: Any, rival: Any
) -> None:
    assert is_taken(chosen("attention_fwd_cuda_sm90", how), CUDA, rival)


def test_a_library_is_taken_unless_pytorch_runs_it_anyway(chips: Chips) -> None:
    for name in ("fa2", "cudnn"):
        other: Any = {"fa2": "cudnn", "cudnn": "fa2"}[name]
        record = chosen(f"attention_fwd_{name}", "exact")
        assert not is_taken(record, CUDA, name)
        assert is_taken(record, CUDA, other)
    gradients = Workload.parse("bwd_b4_h32_kv8_q8192_d128_bf16_causal")
    first = chosen("attention_bwd_cudnn", "default", gradients)
    assert is_taken(first, CUDA, "fa2") and not is_taken(first, CUDA, "cudnn")
    assert not is_taken(chosen("attention_fwd_cudnn", "default"), CUDA, "fa2")


def test_without_a_measurement_the_model_decides_against_flash_attention_2(chips: Chips) -> None:
    """On an A100 nothing was measured. The kernel that is like PyTorch's is not expected to be
    faster, and nothing is known of cuDNN."""
    chips.target = Target.named("sm80")
    same = chosen("attention_fwd_cuda_sm80", "default", LONG, "sm80")
    assert not is_taken(same, CUDA, "fa2")
    assert is_taken(chosen("attention_fwd_cuda_sm80", "exact", LONG, "sm80"), CUDA, "fa2")
    case = Case(kernels.load("attention_fwd_triton"), LONG, chips.target)
    from tunefa.costmodel.estimate import expected_us

    triton = chosen("attention_fwd_triton", "default", LONG, "sm80")
    like_fa2 = Case(kernels.load("attention_fwd_cuda_sm80"), LONG, chips.target)
    faster = expected_us(case, triton.config) < expected_us(like_fa2, same.config)
    assert is_taken(triton, CUDA, "fa2") == faster
    assert not is_taken(triton, CUDA, "cudnn")


def test_the_model_s_word_counts_where_it_says_faster(
    chips: Chips, monkeypatch: pytest.MonkeyPatch
) -> None:
    chips.target = Target.named("sm80")
    times = {"attention_fwd_triton": 90.0, "attention_fwd_cuda_sm80": 100.0}
    monkeypatch.setattr(sdpa_choice, "expected_us", lambda case, config: times[case.kernel.name])
    triton = chosen("attention_fwd_triton", "predicted", LONG, "sm80")
    assert is_taken(triton, CUDA, "fa2")
    assert not is_taken(triton, CUDA, "cudnn")
    gradients = Workload.parse("bwd_b4_h32_kv8_q8192_d128_bf16_causal")
    assert not is_taken(chosen("attention_bwd_triton", "default", gradients, "sm80"), CUDA, "fa2")


def test_short_kernels_are_taken_in_cuda_graphs_only(
    chips: Chips, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Workload.parse("b1_h8_q256_d64_bf16_causal")
    found = chosen("attention_fwd_cuda_sm90", "exact", short)
    assert not is_taken(found, CUDA, "fa2")
    monkeypatch.setattr(sdpa_choice, "_is_capturing", lambda: True)
    assert is_taken(found, CUDA, "fa2")
    assert not is_taken(chosen("attention_fwd_fa2", "exact", short), CUDA, "fa2")


@pytest.mark.parametrize(("rows", "is_taken_in_graphs"), [(64, False), (256, True)])
def test_short_kernels_that_nothing_was_measured_near_stay_with_pytorch(
    chips: Chips, monkeypatch: pytest.MonkeyPatch, rows: int, is_taken_in_graphs: bool
) -> None:
    """The calls of tests/gpu/test_integrations_gpu.py, with the records that tunefa ships."""
    workload = Workload.parse(f"b1_h32_kv8_q{rows}_d128_bf16_causal")
    served = [kernels.load(name) for name in kernels.names()]
    target = Target.named("NVIDIA H200")
    choice = choose(
        Store([root("results")]), workload, target, [k for k in served if k.op == "fwd"]
    )
    found = Chosen(choice.kernel, dict(choice.config), choice.how, "", workload)
    monkeypatch.setattr(sdpa_choice, "_is_capturing", lambda: True)
    for rival in ("fa2", "cudnn"):
        given: Any = rival
        assert is_taken(found, CUDA, given) == is_taken_in_graphs, found


def test_growing_lengths_share_what_is_decided(chips: Chips) -> None:
    for keys in range(5000, 5100):
        workload = Workload.parse(f"b8_h32_kv8_q{keys}_d128_bf16_causal")
        assert is_taken(chosen("attention_fwd_cuda_sm90", "nearest", workload), CUDA, "fa2")
    assert sdpa_choice._taken_us.cache_info().misses <= 2


def test_nothing_is_captured_here() -> None:
    assert sdpa_choice._is_capturing() is False
