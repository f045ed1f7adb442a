"""tunefa/report/rooflines.py: winners under the ceilings of their chip."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from tests.support.sample_records import measured, predicted
from tunefa.report import rooflines
from tunefa.report.content import Content
from tunefa.report.part import Plot
from tunefa.spec.target import Target


def test_each_chip_and_dtype_has_its_plot() -> None:
    records = [measured("q1024"), measured("q1024_fp16"), predicted("q2048")]
    parts = rooflines.section(Content(records=records)).parts
    assert [part.title for part in parts] == [
        "NVIDIA H200 (sm90), measured, bf16",
        "NVIDIA H200 (sm90), measured, fp16",
        "sm90, predicted, bf16",
    ]
    assert all(isinstance(block, Plot) for part in parts for block in part.blocks)


def test_a_chip_that_is_not_known_has_a_sentence() -> None:
    record = measured(device="NVIDIA Z9", arch="sm999")
    ((block,),) = (part.blocks for part in rooflines.section(Content(records=[record])).parts)
    assert isinstance(block, str) and "NVIDIA Z9" in block


def test_points_are_those_of_the_records() -> None:
    record = measured("b4_q4096", median_us=500.0)
    (point,) = rooflines.points([record])
    assert point.intensity == record.workload.flops / record.workload.io_bytes
    assert point.flops_per_s == pytest.approx(record.workload.flops / 500e-6)
    assert (point.label, point.kind) == (str(record.workload), "measured")
    assert rooflines.points([predicted()])[0].kind == "predicted"


def test_many_points_have_no_names() -> None:
    records = [measured(f"q{1024 * (place + 1)}") for place in range(rooflines.MOST_LABELS + 1)]
    assert not any(point.label for point in rooflines.points(records))


def test_the_points_are_drawn() -> None:
    canvas = Figure()
    rooflines.draw(rooflines.points([measured()]), Target.named("h200"), canvas)
    (axes,) = canvas.axes
    assert "measured" in [line.get_label() for line in axes.lines]


def test_an_empty_store() -> None:
    section = rooflines.section(Content())
    assert not section.parts and section.empty
