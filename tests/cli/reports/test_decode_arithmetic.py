"""tunefa/cli/reports/decode_arithmetic.py: a calculator gives the figures of the model."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tunefa.cli.reports import arithmetic, decode_arithmetic, step
from tunefa.costmodel import latency
from tunefa.spec.target import Case
from tunefa.spec.tiling import DecodeTiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

NEEDED = Resources(32768, 64, 0, 0)
TILING = DecodeTiling(
    block_m=16, block_n=64, columns=128, columns_v=64, warps=4, copying_warps=0, blocks_ahead=2,
    copied_by_threads=True, by_wgmma=False, max_registers=255, ctas_per_sm=2, min_split_keys=512,
    max_splits=8, heights=1, last_cta_combines=False,
)  # fmt: skip
KERNELS = [
    ("attention_decode_cuda_sm90", "sm90"),
    ("attention_decode_triton", "sm80"),
    ("attention_decode_triton", "sm90"),
]


@pytest.mark.parametrize(("kernel", "arch"), KERNELS)
@pytest.mark.parametrize("text", ["decode_k8k_d64_dv128", "decode_b7_h16_kv8_q3_k4k_page16_varlen"])
def test_the_formulas_give_the_cycles(kernel: str, arch: str, text: str) -> None:
    case = Case.from_names(kernel, text, arch)
    for config in random.Random(0).sample(case.feasible().configs, 10):
        found = latency.of(case).predict(case, config, NEEDED)
        lines = step.of(case, config, NEEDED, found).lines
        assert lines.keys() == found.cycles_per_step.keys()
        for pipe, cycles in found.cycles_per_step.items():
            formula, numbers = lines[pipe]
            value = eval(numbers.replace(",", "").replace("x", "*"))
            assert value == pytest.approx(cycles), (pipe, numbers)
            assert formula.count(" x ") >= 3 and formula.count("/") <= numbers.count("/")


def test_copies_by_threads_are_in_the_formula() -> None:
    (formula, numbers) = decode_arithmetic.cycle_lines(TILING)["warps"]
    assert formula == "cycles per key x N x M / 16 x (D + Dv) / 256 / warps + 600"
    assert numbers == "(70 + 16 x 16 / 16) x 64 x 16 / 16 x 192 / 256 / 4 + 600"


def test_wgmma_multiplies_at_the_peak_rate() -> None:
    (formula, numbers) = decode_arithmetic.cycle_lines(replace(TILING, by_wgmma=True))["warps"]
    assert formula == "2 x M x N x (D + Dv) / FLOPs per clock + 600"
    assert numbers == "2 x 16 x 64 x 192 / 4096 + 600"


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("decode_k300", "1 x 300"),
        ("decode_b3_k1500", "3 x 512"),
        ("decode_k8k", "8 x 1,024"),  # no more than max_splits
        ("decode_k8k_w700", "2 x 512"),
    ],
)
def test_splits_are_those_of_the_keys_that_a_sequence_sees(text: str, cuts: str) -> None:
    said = decode_arithmetic.size(Workload.parse(text), TILING)
    assert said == f"M = 16 query rows by N = 64 keys; splits x keys of a sequence: {cuts}"


def test_splits_that_follow_the_batch_are_all_named() -> None:
    case = Case.from_names("attention_decode_cuda_sm90", "decode_b2_k8k", "sm90")
    config = {**case.default(), "LEAF_KEYS": 512, "TREE_DEPTH": 2}
    said = decode_arithmetic.size(case.workload, case.decode_tiling(config))
    assert said.endswith(": 16 x 512 or 8 x 1,024 or 4 x 2,048, the best for the batch")


@pytest.mark.parametrize(("keys", "said"), [(128, "saved"), (8192, "its last CTA adds up")])
def test_what_the_last_cta_saves_or_adds_is_told(keys: int, said: str) -> None:
    case = Case.from_names("attention_decode_cuda_sm90", f"decode_k{keys}", "sm90")
    found = latency.of(case).predict(case, case.default() | {"LAST_CTA_COMBINES": 1}, NEEDED)
    us, text = arithmetic.time_lines(found, 1830.0, "")["beside"]
    assert (us < 0) is (said == "saved") and said in text
