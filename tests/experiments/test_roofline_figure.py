"""The ceilings of a chip in FLOP/s and bytes/s, and what is drawn of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from matplotlib.figure import Figure

from tunefa.costmodel.roofline import roofline
from tunefa.experiments import figure, roofline_figure
from tunefa.experiments.roofline_figure import Point
from tunefa.spec.arch import GpuArch
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

H200 = Target.named("h200")
LONG = Workload.parse("b4_h32_q4096_d64_fp16_causal")
DECODE = Workload.parse("b64_h32_kv8_q1_k8192_d128_bf16")


def rate(name: str, workload: Workload, target: Target = H200) -> float | None:
    found = {each.name: each for each in roofline_figure.ceilings([workload], target)}
    return found[name].flops_per_s


@pytest.mark.parametrize("text", [str(LONG), str(DECODE), "q512_d128_softcap", "q512_d64_fp32"])
def test_ceilings_are_the_bounds_of_the_cost_model(text: str) -> None:
    """A workload that runs at a ceiling takes the time of the roofline's bound."""
    workload = Workload.parse(text)
    bounds = roofline(workload, H200).bounds_us
    for each in roofline_figure.ceilings([workload], H200):
        bound = {"tensor": "tensor cores", "exp2": "exp2 units"}.get(each.name[:6].strip(", "))
        if bound is not None:
            assert each.flops_per_s is not None
            assert workload.flops / each.flops_per_s * 1e6 == pytest.approx(bounds[bound])
        if each.name == "HBM":
            assert each.bytes_per_s is not None
            assert workload.io_bytes / each.bytes_per_s * 1e6 == pytest.approx(
                bounds["HBM bandwidth"]
            )


def test_exp2_units_limit_short_heads_more() -> None:
    arch, device = H200.arch, H200.device
    assert isinstance(arch, GpuArch)
    per_s = arch.exp2_per_clock_per_sm * device.sms * device.boost_mhz * 1e6
    assert rate("exp2, D + Dv = 128", LONG) == pytest.approx(per_s * 2 * 128)
    assert rate("exp2, D + Dv = 256", DECODE) == pytest.approx(per_s * 2 * 256)


def test_every_dtype_and_head_dimension_has_its_peak_once() -> None:
    names = [each.name for each in roofline_figure.ceilings([LONG, DECODE, LONG], H200)]
    assert len(names) == len(set(names)) == 7
    assert {"tensor cores, fp16", "tensor cores, bf16", "shared memory", "L2", "HBM"} < {*names}


def test_rates_that_cannot_bind_may_be_left_out() -> None:
    """At D = Dv = 64 the exp2 units of an H200 are as fast as its tensor cores; at 128, twice."""
    found = roofline_figure.ceilings([LONG, DECODE], H200, binding=True)
    exp2 = [each.name for each in found if each.name.startswith("exp2")]
    assert exp2 == ["exp2, D + Dv = 128"]


def test_an_npu_has_no_ceiling_of_exp2_or_shared_memory() -> None:
    names = [each.name for each in roofline_figure.ceilings([LONG], Target.named("Ascend910B3"))]
    assert names == ["HBM", "L2", "tensor cores, fp16"]


def test_a_dtype_without_tensor_cores_has_no_peak() -> None:
    assert roofline_figure.tensor_flops_per_s("e4m3", Target.named("sm80")) is None


def test_a_point_is_at_its_intensity_and_speed() -> None:
    point = Point.of(LONG, 1000.0)
    assert point.intensity == LONG.flops / LONG.io_bytes
    assert point.flops_per_s == pytest.approx(LONG.flops * 1000.0)


def drawn(points: list[Point], target: Target = H200) -> Any:
    axes = Figure().add_subplot()
    roofline_figure.draw(points, target, axes)
    return axes


def test_points_are_drawn_where_they_are_and_by_kind() -> None:
    points = [Point.of(LONG, 900.0, kind="measured"), Point.of(LONG, 1100.0, kind="predicted")]
    lines = {line.get_label(): line for line in drawn(points).lines}
    for point in points:
        line = lines[point.kind]
        assert list(line.get_xdata()) == [point.intensity]
        assert list(line.get_ydata()) == [pytest.approx(point.flops_per_s / 1e12)]
    assert lines["measured"].get_marker() != lines["predicted"].get_marker()


def test_all_points_and_the_highest_ceiling_are_inside() -> None:
    points = [Point.of(DECODE, 600.0), Point.of(LONG, 1.0), Point.of(LONG, 1e6)]
    axes = drawn(points)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for point in points:
        assert left < point.intensity < right
        assert bottom < point.flops_per_s / 1e12 < top


def test_rates_that_coincide_share_a_line() -> None:
    """On an H200, the exp2 units reach the tensor peak of fp16 exactly at D = Dv = 64."""
    texts = [text.get_text() for text in drawn([Point.of(LONG, 900.0)]).texts]
    assert "exp2, D + Dv = 128; tensor cores, fp16: 989 TFLOP/s" in texts


def test_labels_do_not_overlap() -> None:
    axes = drawn([Point.of(LONG, 900.0 + step, f"point {step}") for step in range(5)])
    heights = sorted(text.xyann[1] for text in axes.texts if "point" in text.get_text())
    assert len(heights) == 5
    assert min(b - a for a, b in itertools.pairwise(heights)) > 0.04


def test_a_label_is_no_formula_and_no_markup() -> None:
    points = [Point.of(LONG, 900.0, r"$\frac{<script>alert(1)</script>--")]
    text = figure.svg(lambda canvas: roofline_figure.draw(points, H200, canvas.add_subplot()))
    assert "<script>" not in text


@pytest.mark.parametrize("target", ["h200", "sm80", "Ascend910B3"])
def test_a_plot_without_points_has_its_bandwidths(target: str) -> None:
    axes = drawn([], Target.named(target))
    assert any(text.get_text().startswith("HBM") for text in axes.texts)
