"""The section of rooflines: the speed of each winner under the ceilings of its chip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tunefa.experiments import roofline_figure
from tunefa.experiments.roofline_figure import Point
from tunefa.report.content import Content
from tunefa.report.part import Block, Part, Plot, Section, plural
from tunefa.report.winners import by_chip, target_of
from tunefa.spec.target import Target
from tunefa.store.record import Record

MOST_LABELS = 3
"""More points than these would cover each other's names; the table of winners has them."""


def section(content: Content) -> Section:
    """Returns a plot for each chip."""
    return Section(
        name="roofline",
        title="Roofline",
        about="The speed of each winner over its arithmetic intensity: FLOPs for each byte of Q, "
        "K, V, the output and the logsumexp, each moved once. FLOPs count the visible (query, key) "
        "pairs only. No kernel gets above the HBM line and the level lines.",
        parts=[
            Part(f"{chip}, {dtype}", [_block(f"{chip}, {dtype}", held)])
            for chip, records in by_chip(content.records)
            for dtype, held in _by_dtype(records).items()
        ],
        empty="There are no records to show: `tunefa search` makes them.",
    )


def _by_dtype(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each dtype, as each has its own peak."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.workload.dtype, []).append(record)
    return found


def _block(chip: str, records: Sequence[Record]) -> Block:
    target = target_of(records[0])
    if target is None:
        return f"tunefa does not know {chip}, so it has no ceilings to draw."
    return Plot(
        partial(draw, points(records), target),
        f"Roofline of {chip} with {plural(len(records), 'workload')}",
        "Sloped lines are bandwidths. Level lines are rates: of the tensor cores, and of the exp2 "
        "units for those D + Dv where they are not faster than the tensor cores. The L2 and "
        "shared-memory lines bound what a kernel reads there, in FLOPs per byte of that level.",
        (9.0, 5.0),
    )


def points(records: Sequence[Record]) -> list[Point]:
    """Returns a point for each record, with its workload's name if they are few."""
    named = len(records) <= MOST_LABELS
    return [
        Point.of(
            record.workload,
            record.median_us,
            str(record.workload) if named else "",
            roofline_figure.MEASURED
            if record.objective == "measured"
            else roofline_figure.PREDICTED,
        )
        for record in records
    ]


def draw(found: Sequence[Point], target: Target, canvas: Any) -> None:
    """Draws the points under the ceilings of a chip into an empty matplotlib figure."""
    roofline_figure.draw(found, target, canvas.add_subplot(), binding=True)
