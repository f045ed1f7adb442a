"""attention_bwd_cuda_sm90, as far as no numbers are needed: what it serves, what its rules refuse,
what its host side passes, and what the compiler says of its defaults."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec, variants
from tunefa.compile.languages import cuda
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_cuda_sm90")
MODULE = KERNEL.module
SM90 = Target.named("sm90")
needs_nvrtc = pytest.mark.skipif(
    languages.load("cuda").why_no_compiler(SM90.arch) is not None, reason="needs NVRTC"
)


def case_of(text: str) -> Case:
    return Case(KERNEL, Workload.parse(f"bwd_{text}"), SM90)


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        ("d64_full", {"BLOCK_M": 80}, "BLOCK_M must be a multiple of 32"),
        ("d128_full", {"L2_SECTION_HEADS": 4}, "needs a right mask"),
        ("d128_causal", {"STAGGER": 1}, "STAGGER needs a full mask"),
        ("d128_full_deterministic", {"STAGGER": 1}, "in any sequence"),
        ("d128_causal", {"L2_SECTION_HEADS": 32}, "above 16 needs deterministic"),
        ("d128_full", {"BLOCK_M": 96}, "shared memory of a CTA"),
        ("d128_causal", {"BLOCK_M": 80, "Q_STAGES": 3}, "shared memory of a CTA"),
    ],
)
def test_what_cannot_work_is_refused(text: str, changes: dict[str, int], reason: str) -> None:
    case = case_of(text + "_q4096")
    assert case.refusal(case.default()) is None
    assert reason in (case.refusal({**case.default(), **changes}) or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("d256_causal", "up to 128"),
        ("d64_dv32_full", "one head dimension"),
        ("d128_causal_softcap", "soft-capped"),
        ("d128_fp32_causal", "bf16 and fp16 only"),
        ("d100_causal", "multiples of 8"),
    ],
)
def test_what_it_does_not_serve_is_left_to_other_kernels(text: str, reason: str) -> None:
    assert reason in (case_of(text + "_q4096").why_not() or "")


@pytest.mark.parametrize(("flag", "outputs"), [("", ("dq",)), ("_deterministic", ())])
def test_only_dq_is_added_up_in_no_fixed_order(flag: str, outputs: tuple[str, ...]) -> None:
    case = case_of(f"q4096_d128_full{flag}")
    assert MODULE.unordered(case.workload, case.default()) == outputs


def test_deterministic_gradients_have_the_same_shared_memory() -> None:
    for text in ("d64_full", "d128_causal", "d128_causal_w256", "d96_causal_varlen"):
        plain, ordered = (case_of(f"q4096_{text}{flag}") for flag in ("", "_deterministic"))
        config = ordered.default()
        changed = {**config, "L2_SECTION_HEADS": 1, "EARLY_POSTPROCESS": 0}
        assert ordered.refusal(config) is None and plain.refusal(changed) is None
        assert ordered.estimate(config) == plain.estimate(changed)


def heads_behind_rows(workload: Workload) -> tuple[Any, ...]:
    """The tensors of a call whose heads lie behind rows."""
    w = workload

    def made(heads: int, length: int) -> torch.Tensor:
        return torch.zeros(w.batch, length, heads, w.head_dim, dtype=torch.float16).transpose(1, 2)

    q, out, dout, dq = (made(w.heads, w.seqlen_q) for _ in range(4))
    k, v, dk, dv = (made(w.heads_kv, w.seqlen_k) for _ in range(4))
    lse = torch.zeros(w.batch, w.heads, w.seqlen_q)
    return q, k, v, out, lse, dout, torch.zeros(()).expand(lse.shape), dq, dk, dv


def launched(case: Case, config: dict[str, Any]) -> dict[str, tuple[Any, list[Any]]]:
    """The grid and the arguments of the three kernels; numbers are Python's."""
    spec, tensors = LaunchSpec(case, config, 0.5), heads_behind_rows(case.workload)
    tensors += tuple(torch.empty(shape, dtype=kind) for shape, kind in spec.scratch(tensors))
    made = {
        "before": spec.preprocess_arguments(tensors),
        "main": spec.arguments(tensors),
        "after": spec.postprocess_arguments(tensors),
    }
    return {name: (grid, list(map(plain, each))) for name, (grid, each) in made.items()}


def plain(argument: Any) -> Any:
    if isinstance(argument, ctypes.Structure):
        return tuple(getattr(argument, name) for name, *_ in argument._fields_)
    return argument.value if isinstance(argument, ctypes._SimpleCData) else argument


def test_kernels_before_and_after_get_the_strides_of_their_tensors() -> None:
    case = case_of("b2_h4_kv2_q200_k300_d96_fp16_causal")
    calls = launched(case, {**case.default(), "BLOCK_M": 80, "GROUP_SPLITS": 1})
    rows = (200 * 4 * 96, 96, 4 * 96)
    grid, arguments = calls["before"]
    assert grid == (2 * 4 * 3, 1, 1) and arguments[-4:] == [3, rows, rows, (0, 0, 0)]
    grid, arguments = calls["after"]
    edges = [100, 2**29 + 1]  # row i sees the last keys, as many as there are, up to key i + 100
    assert grid == (2 * 4 * 3, 1, 1) and arguments[-8:] == [0.5, 4, 200, 3, 300, *edges, rows]
    calls = launched(case, {**case.default(), "BLOCK_M": 80, "GROUP_SPLITS": 2})
    grid, arguments = calls["after"]
    keys = (300 * 2 * 96, 96, 2 * 96)
    # dK and dV of three tiles of each of four KV heads.
    assert grid == (2 * 4 * 3 + 2 * 2 * 2 * 3, 1, 1)
    assert arguments[-5:] == [2, 3, 2 * 4 * 3, keys, keys]


def test_a_cta_has_128_keys_of_a_head_and_blocks_have_the_rows_of_a_step() -> None:
    case = case_of("b2_h4_kv2_q200_k300_d96_fp16_causal")
    config = {**case.default(), "BLOCK_M": 80, "GROUP_SPLITS": 1, "L2_SECTION_HEADS": 2}
    grid, arguments = launched(case, config)["main"]
    assert grid == (2 * 2 * 3, 1, 1)
    maps = [each for each in arguments if isinstance(each, dict)]
    assert [each["box"][2] for each in maps] == [80, 128, 128, 80, 64, 64]
    lse_log2, delta, dq_sum, counts = arguments[6:10]
    assert lse_log2.shape == delta.shape == (2 * 4 * 240,) and dq_sum.shape == (2 * 4 * 240, 128)
    assert counts.shape == (2 * 4 * 3 + 1, 2, 2)
    numbers = [each for each in arguments if isinstance(each, int | float)]
    no_sequences, *sizes = numbers[:6]
    # Row i sees the last keys, as many as there are, up to key i + 100.
    assert no_sequences == 0 and sizes == [4, 2, 300, 100, numbers[5]] and numbers[5] >= 300
    assert numbers[6:] == [3, 2, 2 * 2 * 3, 3, pytest.approx(0.5 * 1.4426950408889634), 0.5]


def test_ctas_that_share_a_tile_are_those_of_kv_heads_with_smaller_groups() -> None:
    case = case_of("b2_h8_kv2_q200_k300_d96_fp16_causal")
    config = {**case.default(), "GROUP_SPLITS": 4, "PERSISTENT": 0, "L2_SECTION_HEADS": 2}
    grid, arguments = launched(case, config)["main"]
    assert grid == (2 * 2 * 4 * 3, 1, 1)
    numbers = [each for each in arguments if isinstance(each, int | float)]
    assert numbers[1:3] == [8, 2 * 4] and numbers[7:10] == [2 * 4, 2 * 2 * 4 * 3, 3]
    assert arguments[10].shape == (2 * 2 * 4 * 3, 2 * 128, 96)


def test_a_window_is_passed_as_the_last_key_of_a_row_and_their_number() -> None:
    case = case_of("h2_q200_k300_d64_fp16_full_w50_a20")
    grid, arguments = launched(case, case.default())["main"]
    numbers = [each for each in arguments if isinstance(each, int | float)]
    assert grid == (2 * 3, 1, 1) and numbers[4:6] == [100 + 20, 50 + 20]


def test_tensors_that_tma_cannot_read_are_not_aligned() -> None:
    tensors = list(heads_behind_rows(Workload.parse("bwd_h2_q70_k90_d64_fp16")))
    assert MODULE.is_aligned(tensors) and isinstance(KERNEL.unaligned, str)
    for place in (0, 1, 2, 3, 5, 7, 8, 9):
        wrong, (*_, rows, columns) = list(tensors), tensors[place].shape
        whole = torch.zeros(tensors[place].numel() + 4, dtype=torch.float16)
        wrong[place] = whole[4:].view(tensors[place].shape)  # 8 bytes behind a multiple of 16
        assert not MODULE.is_aligned(wrong)
        wide = torch.zeros(*tensors[place].shape[:2], rows, columns + 4, dtype=torch.float16)
        wrong[place] = wide[..., :columns]
        assert not MODULE.is_aligned(wrong)
    tensors[6] = torch.zeros(tensors[4].numel() + 1)[1:].view(tensors[4].shape)
    assert MODULE.is_aligned(tensors), "no kernel reads dlse by TMA"


def test_two_kernels_start_before_the_one_before_them_has_ended() -> None:
    """The first one follows kernels of others, which need not expect it."""
    case = case_of("h16_q4096_d128")
    made = variants(case, case.default(), True)
    overlaps = {
        each["function"]: each.get("overlaps_kernel_before", False) for each in made.values()
    }
    assert overlaps == {"attention_bwd": True, "prepare_rows": False, "write_dq": True}


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["d64_full", "d64_causal", "d96_full", "d96_causal", "d128_full", "d128_causal",
     "d64_full_deterministic", "d128_causal_deterministic"],
)  # fmt: skip
def test_defaults_spill_nothing(kind: str) -> None:
    case = case_of(f"h16_q4096_{kind}")
    compiled = cuda.compile(case, case.default())
    made, expected = compiled.resources, case.estimate(case.default())
    assert (made.smem_bytes, made.spill_bytes) == (expected["smem_bytes"], 0)
    assert made.registers == expected["registers"]
    assert compiled.preprocess is not None and compiled.postprocess is not None
