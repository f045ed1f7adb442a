"""One step of a kernel's inner loop in words and formulas, by op."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefa.cli.reports import (
    arithmetic,
    backward_arithmetic,
    decode_arithmetic,
    matmul_arithmetic,
)
from tunefa.costmodel.gpu import Prediction
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.matmul import OP, own
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources


@dataclass(frozen=True)
class Step:
    """One step of a config: its formulas, and the cycles that it takes."""

    size: str
    """The size of the step, such as `M = 128 queries by N = 64 keys`."""
    lines: dict[str, tuple[str, str]]
    """The formula and its numbers, by pipe."""
    through_l2: str
    """The data that the L2 cache delivers, in words."""
    issued: str
    """The work that takes the slots of instruction issue, in words."""


def of(case: Case, config: Config, resources: Resources, found: Prediction) -> Step:
    """Returns the step of a config, which the cost model has found to take these cycles."""
    rates = case.device.tensor_flops_per_clock_per_sm
    chip = replace(gpu(case.arch), tensor_flops_per_clock_per_sm=rates)
    if case.workload.op == OP:
        product = case.matmul_tiling(config)
        size = f"M = {product.block_m} rows by N = {product.block_n} columns by K = "
        return Step(
            f"{size}{product.block_k}",
            matmul_arithmetic.cycle_lines(own(case.workload), chip, product, resources),
            "A and B, as often as CTAs read them",
            "copies by threads",
        )
    if case.workload.op == "bwd":
        tiled = case.backward_tiling(config)
        workload = case.workload.dense_equivalent
        return Step(
            backward_arithmetic.size(tiled),
            backward_arithmetic.cycle_lines(workload, chip, tiled, resources, found),
            "Q and dO, as often as CTAs read them, and the dQ that is added up"
            if tiled.adds_dq
            else "Q, dO, K and V, as often as CTAs read them",
            "scale, exponentials, dS and masks",
        )
    if case.workload.op == "decode":
        split = case.decode_tiling(config)
        return Step(
            decode_arithmetic.size(case.workload.dense_equivalent, split),
            decode_arithmetic.cycle_lines(split),
            "K and V, once for each tile of query rows",
            "nothing that limits",
        )
    tiling = case.tiling(config)
    return Step(
        f"M = {tiling.block_m} queries by N = {tiling.block_n} keys",
        arithmetic.cycle_lines(case.workload, chip, tiling, resources, found),
        "K and V, as often as CTAs read them",
        "scale, maximum, sum and masks of the softmax",
    )
