"""The roofline plot: FLOP/s over arithmetic intensity, under the ceilings of a chip.

A sloped ceiling is the bandwidth of a memory, a level one is the peak rate of a unit. Source of the
method: Williams et al., "Roofline", CACM 52(4), 2009; of ceilings for each level of the memory:
Yang et al., "Hierarchical Roofline Analysis for GPUs", 2019.

Points count the bytes of HBM, so only the HBM ceiling bounds all of them. The ceilings of the L2
cache and of shared memory bound what a kernel reads there, in FLOPs per byte of that level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunefa.experiments import figure
from tunefa.spec.arch import GpuArch
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

MEASURED, PREDICTED, STANDARD = "measured", "predicted", "standard"
_MARKERS = {MEASURED: "o", PREDICTED: "D", STANDARD: "s"}
"""Kinds are told apart by their markers, too, and predicted points are hollow."""
_NAMES = {STANDARD: "standard attention"}
_LEAST_GAP = 0.05
"""The least distance of two labels, as a share of the height of the plot."""
_SAME = 1.05
"""Rates that differ by less have one line."""
_TERA = 1e12
_LINE: Any = {"color": figure.THEORY, "linewidth": 1.2, "zorder": 1}
_WORDS: Any = {"color": figure.THEORY, "fontsize": 8, "parse_math": False}


@dataclass(frozen=True)
class Point:
    """One computation of a workload."""

    workload: Workload
    """Its dtype and its head dimensions say which peaks count."""
    intensity: float
    """FLOPs for each byte that moves to or from HBM."""
    flops_per_s: float
    label: str = ""
    """The words beside the point; empty for none."""
    kind: str = MEASURED
    """`MEASURED`, `PREDICTED`, or `STANDARD` for attention in PyTorch's operators."""

    @classmethod
    def of(cls, workload: Workload, time_us: float, label: str = "", kind: str = MEASURED) -> Point:
        """Returns the point of a kernel that moves inputs and outputs once, in `time_us`."""
        intensity = workload.flops / workload.io_bytes
        return cls(workload, intensity, workload.flops / time_us * 1e6, label, kind)


@dataclass(frozen=True)
class Ceiling:
    """One limit of a chip: a bandwidth, or a rate."""

    name: str
    bytes_per_s: float | None = None
    flops_per_s: float | None = None


def ceilings(workloads: Sequence[Workload], target: Target, binding: bool = False) -> list[Ceiling]:
    """Returns the bandwidths of a target, and the peak rates that these workloads can reach.

    The exp2 units limit FLOP/s because each visible pair takes one exp2 (two with a softcap) and
    2 (D + Dv) FLOPs. With `binding`, rates of the exp2 units that are above that of the tensor
    cores are left out. NPUs have no known rate of exp2 and no shared memory.
    """
    device, arch = target.device, target.arch
    clock = device.boost_mhz * 1e6
    found = [
        Ceiling("HBM", bytes_per_s=device.hbm_bytes_per_s),
        Ceiling("L2", bytes_per_s=device.l2_bytes_per_clock * clock),
    ]
    if isinstance(arch, GpuArch):
        smem = arch.smem_bytes_per_clock_per_sm * device.sms * clock
        found.append(Ceiling("shared memory", bytes_per_s=smem))
    rates: dict[str, float] = {}
    for workload in workloads:
        peak = tensor_flops_per_s(workload.dtype, target, workload.tf32_products)
        if peak is not None:
            rates[f"tensor cores, {workload.dtype}"] = peak
        if isinstance(arch, GpuArch) and workload.exp2_count:
            columns, per_pair = workload.head_dim + workload.head_dim_v, 1 + workload.softcap
            exp2 = arch.exp2_per_clock_per_sm * device.sms * clock
            name = f"exp2, D + Dv = {columns}" + (", softcap" if workload.softcap else "")
            name += ", backward" if workload.op == "bwd" else ""
            rate = exp2 * workload.flops / workload.exp2_count / per_pair
            if not binding or peak is None or rate <= _SAME * peak:
                rates[name] = rate
    return found + [Ceiling(name, flops_per_s=rates[name]) for name in sorted(rates)]


def tensor_flops_per_s(dtype: str, target: Target, tf32_products: int = 3) -> float | None:
    """Returns the peak of the tensor cores; None if they lack the dtype. A product of fp32 is so
    many in tf32."""
    rates = target.device.tensor_flops_per_clock_per_sm
    if dtype == "fp32" and "tf32" in rates:
        return target.device.tensor_flops_per_s("tf32") / tf32_products
    return target.device.tensor_flops_per_s(dtype) if dtype in rates else None


def draw(points: Sequence[Point], target: Target, axes: Any, binding: bool = False) -> None:
    """Draws the ceilings of a target and the points into empty matplotlib axes.

    `binding` leaves ceilings out that cannot bind, for plots of many workloads; see `ceilings`.
    """
    limits = ceilings([point.workload for point in points], target, binding)
    levels = [limit.flops_per_s / _TERA for limit in limits if limit.flops_per_s]
    sloped = [limit.bytes_per_s / _TERA for limit in limits if limit.bytes_per_s]
    speeds = [point.flops_per_s / _TERA for point in points]
    xs = [point.intensity for point in points]
    roof = max(levels, default=1000.0)
    ridge = roof / min(sloped)
    left, right = min([ridge / 64, *(x / 4 for x in xs)]), max([ridge * 16, *(x * 3 for x in xs)])
    bottom = min([min(sloped) * left * 2, *(speed / 3 for speed in speeds)])
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    axes.set(ylim=(bottom, 2 * max([roof, *speeds])))
    axes.set(xlabel="arithmetic intensity, FLOP per byte of HBM", ylabel="TFLOP/s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    for limit in limits:
        if limit.bytes_per_s:
            _draw_slope(limit.name, limit.bytes_per_s / _TERA, (bottom, roof), axes)
    _draw_levels(limits, axes)
    _draw_points(points, axes)
    _draw_labels(points, axes)
    if points:
        axes.legend(loc="lower right")


def _draw_slope(name: str, tera: float, up: tuple[float, float], axes: Any) -> None:
    """Draws a bandwidth in TB/s, between two heights, and its name along the line."""
    (left, right), (bottom, roof) = axes.get_xlim(), up
    start, end = max(left, bottom / tera), min(right, roof / tera)
    if start >= end:
        return
    axes.plot([start, end], [tera * start, tera * end], **_LINE)
    place = start * (end / start) ** 0.5
    axes.text(
        place,
        tera * place * 1.1,
        f"{name}: {tera:,.1f} TB/s",
        rotation=math.degrees(math.atan(tera)),  # among the data: matplotlib finds the page's
        rotation_mode="anchor",
        transform_rotates_text=True,
        **_WORDS,
    )


def _draw_levels(limits: Sequence[Ceiling], axes: Any) -> None:
    """Draws the rates. The names of those that nearly coincide stand on one line."""
    rates = sorted((each.flops_per_s / _TERA, each.name) for each in limits if each.flops_per_s)
    while rates:
        tera = rates[0][0]
        same = [name for rate, name in rates if rate <= _SAME * tera]
        rates = rates[len(same) :]
        dashes = "-" if any("tensor" in name for name in same) else "--"
        right = axes.get_xlim()[1]
        axes.plot(axes.get_xlim(), [tera] * 2, dashes, **_LINE)
        text = f"{'; '.join(same)}: {tera:,.0f} TFLOP/s"
        axes.text(right, tera * 1.04, text, ha="right", **_WORDS)


def _draw_points(points: Sequence[Point], axes: Any) -> None:
    """Draws each kind of points with its own marker and colour."""
    for kind, colour in zip(_MARKERS, figure.COLOURS, strict=False):
        chosen = [point for point in points if point.kind == kind]
        if not chosen:
            continue
        axes.plot(
            [point.intensity for point in chosen],
            [point.flops_per_s / _TERA for point in chosen],
            _MARKERS[kind],
            color=colour,
            fillstyle="none" if kind == PREDICTED else "full",
            markersize=6,
            label=_NAMES.get(kind, kind),
            zorder=3,
        )


def _draw_labels(points: Sequence[Point], axes: Any) -> None:
    """Writes labels to the left of their points, and moves down those that would overlap."""
    to_share = axes.transScale + axes.transLimits
    above = 2.0
    named = [point for point in points if point.label]
    for point in sorted(named, key=lambda each: -each.flops_per_s):
        x, y = to_share.transform((point.intensity, point.flops_per_s / _TERA))
        above = min(y, above - _LEAST_GAP)
        axes.annotate(
            point.label,
            (x, y),
            (x - 0.02, above),
            "axes fraction",
            ha="right",
            va="center",
            fontsize=8,
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": figure.THEORY, "linewidth": 0.6},
            bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 1},
        )
