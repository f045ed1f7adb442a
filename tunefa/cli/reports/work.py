"""The work in a workload as formulas with numbers: FLOPs, bytes, and FLOPs for each byte.

`tunefa explain` prints it, and draws it as a roofline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from tunefa.cli.reports import text
from tunefa.experiments import modelled, roofline_figure
from tunefa.experiments.roofline_figure import Point
from tunefa.spec.arch import GpuArch
from tunefa.spec.matmul import OP, Matmul, own
from tunefa.spec.target import Target
from tunefa.spec.workload import DTYPES, Workload
from tunefa.store.record import Record

_IO_COMPLEXITY = (
    "with N rows, d columns and M elements of on-chip memory, standard attention moves "
    "Θ(N d + N²) elements, a fused kernel Θ(N² d² / M) (arXiv:2205.14135, theorem 2)"
)


def to_data(workload: Workload, target: Target) -> dict[str, Any]:
    """Plain data for `--json`; `bytes` move to or from HBM if each tensor moves once."""
    found: dict[str, Any] = {
        "flops": workload.flops,
        **({} if workload.op == OP else {"visible_pairs": workload.exp2_count}),
        "bytes": workload.io_bytes,
        "flops_per_byte": workload.flops / workload.io_bytes,
        "ridge_flops_per_byte": _ridge(workload, target),
    }
    if _has_standard(workload):
        moved = sum(each.bytes for each in modelled.operators(workload))
        found["standard_attention"] = {
            "bytes": moved,
            "flops_per_byte": workload.flops / moved,
        }
    return found


def show(workload: Workload, target: Target, out: Console) -> None:
    """Prints the FLOPs, the bytes and their ratio, each with its formula."""
    out.print()
    out.print(text.heading("The work"))
    out.print(text.facts(lines(workload, target), indent=2))


def lines(workload: Workload, target: Target) -> dict[str, str]:
    """The formulas with their numbers, by name."""
    intensity = workload.flops / workload.io_bytes
    found = {"FLOPs": _flops(workload), "bytes": _bytes(workload)}
    found["intensity"] = f"{_amount(workload.flops, 'FLOP')} / {_size(workload.io_bytes)}"
    found["intensity"] += f" = {intensity:,.0f} FLOP per byte{_bound(workload, target, intensity)}"
    if _has_standard(workload):
        moved = sum(each.bytes for each in modelled.operators(workload))
        found["standard"] = (
            f"attention in PyTorch's operators writes and reads the scores: {_size(moved)}, "
            f"{moved / workload.io_bytes:,.1f} times the bytes, {workload.flops / moved:,.0f} FLOP "
            f"per byte"
        )
        found["in general"] = _IO_COMPLEXITY
    return found


def _has_standard(workload: Workload) -> bool:
    """Whether it is attention that PyTorch's operators compute as a chain of kernels."""
    return workload.op == "fwd" and not workload.varlen


def _flops(workload: Workload) -> str:
    if workload.op == OP:
        asked = own(workload)
        numbers = f"2 x {asked.m:,} x {asked.n:,} x {asked.k:,}"
        return f"2 m n k = {numbers} = {_amount(workload.flops, 'FLOP')}"
    heads = f"{workload.batch} x {workload.heads}"
    whole = workload.batch * workload.heads * workload.seqlen_q * workload.seqlen_k
    pairs = f"{heads} heads x {workload.pairs:,} pairs"
    if workload.varlen:
        pairs = f"{workload.heads} heads x {workload.pairs:,} pairs of all sequences"
    formula, numbers = "2 (D + Dv)", f"2 x ({workload.head_dim} + {workload.head_dim_v})"
    if workload.op == "bwd":
        formula = "2 (3 D + 2 Dv)"
        numbers = f"2 x (3 x {workload.head_dim} + 2 x {workload.head_dim_v})"
    said = f"{formula} x visible pairs = {numbers} x {pairs}"
    said += f" = {_amount(workload.flops, 'FLOP')}"
    if not workload.varlen and workload.exp2_count != whole:
        part = workload.exp2_count / whole
        said += f"; the mask leaves {part:.1%} of {workload.seqlen_q:,} x {workload.seqlen_k:,}"
    return said


def _bytes(workload: Workload) -> str:
    tensors = _product_bytes(own(workload)) if workload.op == OP else _attention_bytes(workload)
    assert sum(tensors.values()) == workload.io_bytes
    parts = " + ".join(f"{name} {_size(each)}" for name, each in tensors.items())
    return f"{parts} = {_size(workload.io_bytes)}, each tensor once"


def _product_bytes(asked: Matmul) -> dict[str, int]:
    size = DTYPES[asked.dtype]
    elements = {"A": asked.m * asked.k, "B": asked.k * asked.n, "C": asked.m * asked.n}
    return {name: count * size for name, count in elements.items()}


def _attention_bytes(workload: Workload) -> dict[str, int]:
    size = DTYPES[workload.dtype]
    rows, keys = workload.rows_and_keys
    of_keys = keys * workload.heads_kv * workload.kv_bytes
    k, v = of_keys * workload.head_dim, of_keys * workload.head_dim_v
    tensors = {
        "Q": rows * workload.heads * workload.head_dim * size,
        **({"K with V in it": k} if workload.mla else {"K": k, "V": v}),
        "O": rows * workload.heads * workload.head_dim_v * max(size, 2),
    }
    lse = {"lse": rows * workload.heads * 4}
    if workload.op == "bwd":
        return {**tensors, **lse, **{f"d{name}": each for name, each in tensors.items()}}
    return {**tensors, **lse}


def _ridge(workload: Workload, target: Target) -> float | None:
    """The FLOPs for each byte from which the tensor cores are the limit, not HBM."""
    peak = roofline_figure.tensor_flops_per_s(workload.dtype, target, workload.tf32_products)
    return None if peak is None else peak / target.device.hbm_bytes_per_s


def _bound(workload: Workload, target: Target, intensity: float) -> str:
    ridge = _ridge(workload, target)
    if ridge is None:
        return ""
    units = "tensor cores" if isinstance(target.arch, GpuArch) else "cube units"
    need = f"; {target.device.name} needs {ridge:,.0f} to keep its {units} busy, so "
    return need + (f"its {units} are the limit" if intensity > ridge else "HBM is the limit")


def _amount(value: float, unit: str) -> str:
    """Writes an amount with a decimal prefix: 549.8 GFLOP."""
    step = min(5, max(0, int(math.log10(max(value, 1)) // 3)))
    return f"{value / 1000**step:,.4g} {('', 'k', 'M', 'G', 'T', 'P')[step]}{unit}"


def _size(size_bytes: float) -> str:
    """Writes bytes with a binary prefix: 64 MiB."""
    step = min(4, max(0, int(math.log2(max(size_bytes, 1)) // 10)))
    return f"{size_bytes / 1024**step:,.4g} {('', 'Ki', 'Mi', 'Gi', 'Ti')[step]}B"


def points(
    workload: Workload, target: Target, predicted_us: float, measured: Record | None
) -> list[Point]:
    """The points of a roofline: standard attention, the predicted config, the measured record."""
    found = []
    if _has_standard(workload) and isinstance(target.arch, GpuArch):
        time_us = modelled.operators_us(workload, target)
        moved = sum(each.bytes for each in modelled.operators(workload))
        standard = Point.of(workload, time_us, "PyTorch's operators", roofline_figure.STANDARD)
        found.append(replace(standard, intensity=workload.flops / moved))
    found.append(Point.of(workload, predicted_us, "this config", roofline_figure.PREDICTED))
    if measured is not None:
        made = Point.of(workload, measured.median_us, "the record", roofline_figure.MEASURED)
        found.append(made)
    return found


def plot(found: Sequence[Point], target: Target, canvas: Any) -> None:
    """Draws a roofline with these points into an empty matplotlib figure."""
    axes = canvas.add_subplot()
    roofline_figure.draw(found, target, axes)
    workload = found[0].workload
    axes.set_title(f"{workload} on {target.device.name}")
