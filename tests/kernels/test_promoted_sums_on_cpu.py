"""Two-level accumulation of e4m3 in attention_fwd_cuda_sm90, on a CPU that adds products of 8 bits
with 14 bits, as Hopper's tensor cores do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support import cuda_on_cpu
from tunefa.measure import check, reference
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")

Tensors = tuple[torch.Tensor, ...]
KERNEL = kernels.load("attention_fwd_cuda_sm90")
E4M3 = torch.float8_e4m3fn
BASE = {
    **{"WARPGROUPS": 1, "BLOCK_N": 64, "num_stages": 2, "Q_STAGES": 1, "EPILOGUE_SUBTILE": 1},
    **{"INTRA_WG_OVERLAP": 1, "PING_PONG": 0, "RESCALE_THRESHOLD": 8, "SPLIT_DIAGONAL_BLOCK": 0},
    **{"SWIZZLE_BYTES": 128, "P_IN_SMEM": 0, "CLUSTER_SIZE": 1, "L2_SECTION_MB": 8},
}
TWO = {"WARPGROUPS": 2}
D64, D128, D256 = "d64", "d128", "d256"
BLOCKS = {D64: 160, D128: 96, D256: 64}
"""BLOCK_N of the defaults. Sums of 256 columns are promoted to bf16, others to fp32."""
POSITIVE = 8e-3
"""The error that is allowed where V is positive: 5.2e-3 to 6.9e-3 are found at 4,096 keys."""


def positive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Makes V positive, so that sums grow with the number of keys."""
    generator = torch.Generator().manual_seed(1)
    v.copy_((torch.rand(v.shape, generator=generator) + 0.5).to(E4M3))


def falling(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Lets scores fall by 448 nats along the keys, of which the kernel reads the last ones first:
    the units of sums grow by 2^646."""
    positive(q, k, v)
    q[..., 0] = torch.tensor(64.0).to(E4M3)
    k[..., 0] = torch.linspace(28.0, -28.0, k.shape[2]).to(E4M3)


def error(
    folder: Path,
    text: str,
    inputs: Callable[..., None] = positive,
    changes: dict[str, int] | None = None,
    change: cuda_on_cpu.Change = str,
) -> float:
    """The relative error of the output of a workload's kernel, whose source `change` edits."""
    workload = Workload.parse(text)
    head_dim = f"d{workload.head_dim_v}"
    config = {**BASE, "BLOCK_N": BLOCKS.get(head_dim, 64), **(changes or {})}
    run = cuda_on_cpu.compiled(KERNEL, workload, config, folder, change)
    made = check.tensors(workload, "cpu", seed=0)
    inputs(*made[:3])
    for output in made[3:5]:
        output.fill_(float("nan"))
    run(made, workload, sms=2)
    scale = workload.head_dim**-0.5
    right, lse = reference.attention(check.inputs(workload, made, scale), torch.float64)
    assert torch.allclose(made[4].double(), lse, rtol=2e-3, atol=2e-2)
    return float((made[3].double() - right).norm() / right.norm())


def edited(pattern: str, replacement: str) -> cuda_on_cpu.Change:
    def change(source: str) -> str:
        found, count = re.subn(pattern, replacement, source)
        assert count == 1, f"{count} times {pattern}"
        return found

    return change


@pytest.mark.parametrize("head_dim", BLOCKS)
def test_sums_of_many_keys_keep_their_bits(head_dim: str, tmp_path: Path) -> None:
    sizes = f"h1_q64_k4096_{head_dim}_e4m3_full"
    assert error(tmp_path, sizes) < POSITIVE
    assert error(tmp_path, f"{sizes}_fast") > 5e-2  # as on an H200: 7.6e-2


@pytest.mark.parametrize("keys", [513, 800, 1200])
def test_sums_of_some_keys_keep_theirs(keys: int, tmp_path: Path) -> None:
    """The first promotion of a slice is earlier than those that follow. Rounding P makes a larger
    error where there are fewer keys."""
    assert error(tmp_path, f"h1_q64_k{keys}_d128_e4m3_full") < 1.2 * POSITIVE


def never_promoting(source: str) -> str:
    return edited(r"blocks <= SUM_BLOCKS", "true")(source)


def starting_at_zero(source: str) -> str:
    source = edited(r"-0\.5f \* out\[i \+ j\]", "0.0f")(source)
    return edited(r"1\.5f \* reciprocal", "reciprocal")(source)


@pytest.mark.parametrize("change", [never_promoting, starting_at_zero])
def test_sums_lose_bits_without_it(change: cuda_on_cpu.Change, tmp_path: Path) -> None:
    assert error(tmp_path, "h1_q64_k4096_d128_e4m3_full", change=change) > 1.2 * POSITIVE


@pytest.mark.parametrize("head_dim", [D64, D256])
@pytest.mark.parametrize("threshold", [8, 0])
def test_units_of_sums_grow_without_bound(head_dim: str, threshold: int, tmp_path: Path) -> None:
    sizes, changes = f"h1_q64_k1100_{head_dim}_e4m3_full", {"RESCALE_THRESHOLD": threshold}
    assert error(tmp_path, sizes, falling, changes) < 4e-2


def test_units_are_infinite_where_sums_are_never_rescaled(tmp_path: Path) -> None:
    never = edited(r"units\[half\] > 0x1p64f", "false")
    assert math.isnan(error(tmp_path, "h1_q64_k1100_d64_e4m3_full", falling, change=never))


CASES: list[tuple[str, dict[str, int]]] = [
    # Products that do not overlap the softmax; two CTAs; rows without a key.
    ("h2_q130_k1100_d128_e4m3_full", {"INTRA_WG_OVERLAP": 0, "BLOCK_N": 64}),
    ("h2_q130_k1500_d96_e4m3_causal", {**TWO, "CLUSTER_SIZE": 2, "BLOCK_N": 128}),
    ("h1_q1100_k1000_d64_e4m3_causal", {"WARPGROUPS": 3, "PING_PONG": 1}),
    # Slices that no group of blocks divides, and a single one.
    ("h4_kv2_q70_k1300_d64_dv176_e4m3_full", {**TWO, "BLOCK_N": 96}),
    ("h2_q70_k1300_d256_dv16_e4m3_full", {"BLOCK_N": 192}),
    ("h1_q70_k2100_d32_dv256_e4m3_causal", {}),
]


@pytest.mark.parametrize(("text", "changes"), CASES, ids=[text for text, _ in CASES])
def test_sums_are_right_whatever_the_sizes(
    text: str, changes: dict[str, int], tmp_path: Path
) -> None:
    assert error(tmp_path, text, changes=changes) < 1.5 * POSITIVE
