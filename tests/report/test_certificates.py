"""tunefa/report/certificates.py: what certificates say, and what hand-made ones lack."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from tests.support.sample_records import measured, predicted
from tests.support.sample_report import CERTIFICATE, difference
from tunefa.experiments.table import Table
from tunefa.report import certificates
from tunefa.report.certificates import GAIN, KERNEL, RUNNER_UP, Certificate, Difference
from tunefa.report.content import Content
from tunefa.report.part import Plot


def of(certificate: dict[str, Any] | None) -> Certificate:
    return Certificate.of(measured(certificate=certificate))


def test_every_part_is_read() -> None:
    found = of(CERTIFICATE)
    assert found.decision == "the fastest of 6"
    assert found.differences == {
        GAIN: Difference(**difference(0.1)),
        RUNNER_UP: Difference(**difference(0.02)),
        KERNEL: Difference(**difference(0.05)),  # the nearest of two
    }
    assert (found.noise_floor, found.rounds) == (0.004, "18")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"gain_over_default": None, "runner_up": 3, "kernels": [], "noise_floor": "0.1"},
        {"gain_over_default": {"estimate": 1}, "kernels": {"slower_by": {"k": 3}}},
        {"gain_over_default": {"estimate": 1, "low": "x", "high": True}, "noise_floor": True},
        {"runner_up": {"slower_by": {"estimate": 10**400, "low": 0, "high": 0}}},
    ],
)
def test_what_is_not_valid_is_left_out(data: dict[str, Any]) -> None:
    found = of(data)
    assert not found.differences and found.noise_floor is None


def test_a_refused_certificate_says_why() -> None:
    assert of({"refused": "the clock changed"}).decision == "the clock changed"


def test_the_table_is_in_percent() -> None:
    section = certificates.section(Content(records=[measured(certificate=CERTIFICATE)]))
    (part,) = section.parts
    plot, table = part.blocks
    assert isinstance(plot, Plot) and isinstance(table, Table)
    assert table.rows[0][2:] == [
        "10.00 (9.00 to 12.00)",
        "2.00 (1.00 to 4.00)",
        "5.00 (4.00 to 7.00)",
        "0.40",
        "18",
    ]


def test_a_record_without_intervals_has_no_plot() -> None:
    record = predicted(certificate={"decision": "expected faster"})
    (part,) = certificates.section(Content(records=[record, measured()])).parts
    (table,) = part.blocks
    assert isinstance(table, Table) and len(table.rows) == 1


def test_no_certificate_at_all() -> None:
    section = certificates.section(Content(records=[measured()]))
    assert not section.parts and section.empty


def test_intervals_are_drawn_where_they_are() -> None:
    canvas = Figure()
    certificates.draw([of(CERTIFICATE), of({"gain_over_default": difference(0.5)})], canvas)
    (axes,) = canvas.axes
    (gains, *_) = [each for each in axes.containers if each.get_label() == GAIN]
    assert [list(each) for each in gains[0].get_data()] == [pytest.approx([10.0, 50.0]), [0, 1]]
    spans = [list(path[:, 0]) for path in gains[2][0].get_segments()]
    assert spans == [pytest.approx([9.0, 12.0]), pytest.approx([49.0, 52.0])]
    left, right = axes.get_xlim()
    assert left < 0 and right > 52.0


def test_an_interval_without_its_estimate_is_drawn() -> None:
    odd = {"gain_over_default": {"estimate": 5.0, "low": 6.0, "high": 4.0}}
    certificates.draw([of(odd)], Figure())
