"""The section of certificates: how sure the races are that a winner is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tunefa.experiments import figure
from tunefa.experiments.table import NO_VALUE, Table, number
from tunefa.report.content import Content
from tunefa.report.part import Part, Plot, Section, plain, plural
from tunefa.report.winners import by_chip
from tunefa.store.record import Record

HEAD = ("workload", "decision", "gain over default\n%", "runner-up slower by\n%",
        "next kernel slower by\n%", "noise floor\n%", "rounds")  # fmt: skip
GAIN, RUNNER_UP, KERNEL = "gain over the default", "runner-up slower by", "next kernel slower by"
_MARKERS = {GAIN: "o", RUNNER_UP: "D", KERNEL: "s"}
_LINEAR_PERCENT = 5.0
"""Below it, the axis of percentages is linear; above, logarithmic: gains reach from 0.1 to 100."""
_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Difference:
    """A relative difference of two times, with the ends of its interval."""

    estimate: float
    low: float
    high: float

    @classmethod
    def read(cls, data: Any) -> Difference | None:
        """Returns the difference in a certificate; None if there is none, or no valid one."""
        if not isinstance(data, Mapping):
            return None
        found = [_finite(data.get(name)) for name in ("estimate", "low", "high")]
        numbers = [each for each in found if each is not None]
        return cls(*numbers) if len(numbers) == len(found) else None

    def __str__(self) -> str:
        """`9.45 (9.10 to 9.57)`, in percent."""
        estimate, low, high = (
            number(100 * each, 2) for each in (self.estimate, self.low, self.high)
        )
        return f"{estimate} ({low} to {high})"


@dataclass(frozen=True)
class Certificate:
    """The facts of a record's race."""

    workload: str
    decision: str
    differences: Mapping[str, Difference]
    """By `GAIN`, `RUNNER_UP` and `KERNEL`; those that the race showed."""
    noise_floor: float | None
    rounds: str

    @classmethod
    def of(cls, record: Record) -> Certificate:
        """Returns the certificate of a record. Anything that a hand-made one lacks is left out."""
        data = record.certificate or {}
        runner_up, kernels = _mapping(data.get("runner_up")), _mapping(data.get("kernels"))
        others = map(Difference.read, _mapping(kernels.get("slower_by")).values())
        known = [each for each in others if each is not None]
        found = {
            GAIN: Difference.read(data.get("gain_over_default")),
            RUNNER_UP: Difference.read(runner_up.get("slower_by")),
            KERNEL: min(known, key=lambda each: each.estimate, default=None),
        }
        return cls(
            workload=str(record.workload),
            decision=str(record.not_certified or data.get("decision") or NO_VALUE),
            differences={name: each for name, each in found.items() if each is not None},
            noise_floor=_finite(data.get("noise_floor")),
            rounds=str(data.get("rounds", NO_VALUE)),
        )


def section(content: Content) -> Section:
    """Returns the certificates, in a table and a plot for each chip."""
    held = [record for record in content.records if record.certificate is not None]
    return Section(
        name="certificates",
        title="Certificates",
        about="At the end of a search, the best configs race: they run in turn, round after round. "
        "A certificate says what the race showed, as relative differences of times with their "
        "intervals. The noise floor is the difference that a config shows from itself.",
        parts=[Part(chip, _blocks(chip, records)) for chip, records in by_chip(held)],
        empty="No record has a certificate: a search that measures makes one.",
    )


def _blocks(chip: str, records: Sequence[Record]) -> list[Table | Plot]:
    found = [Certificate.of(record) for record in records]
    rows = [
        [
            each.workload,
            each.decision,
            *(str(each.differences.get(name, NO_VALUE)) for name in _MARKERS),
            number(None if each.noise_floor is None else 100 * each.noise_floor, 2),
            each.rounds,
        ]
        for each in found
    ]
    remark = (
        "A dash stands where there is nothing to compare: the winner is the default itself, or "
        "raced alone, or no other kernel serves the workload."
    )
    words = frozenset({"workload", "decision"})
    blocks: list[Table | Plot] = []
    drawn = [each for each in found if each.differences]
    if drawn:
        blocks.append(
            Plot(
                partial(draw, drawn),
                f"Intervals of the differences in the races of {plural(len(drawn), 'workload')} on "
                f"{chip}",
                "Markers are estimates, and lines are their intervals. Grey bars are noise floors: "
                "an interval beyond the bar is a difference that the race could tell.",
                (9.0, 1.3 + 0.24 * len(drawn)),
            )
        )
    return [*blocks, Table("Certificates of the races", HEAD, rows, (remark,), words)]


def draw(found: Sequence[Certificate], canvas: Any) -> None:
    """Draws the differences of each workload in percent into an empty matplotlib figure."""
    axes = canvas.add_subplot()
    for place, each in enumerate(found):
        noise = 100 * (each.noise_floor or 0.0)
        axes.barh(place, 2 * noise, left=-noise, height=0.7, color=figure.THEORY, alpha=0.3)
    for (name, marker), colour in zip(_MARKERS.items(), figure.COLOURS, strict=False):
        known = [(i, each.differences[name]) for i, each in enumerate(found)
                 if name in each.differences]  # fmt: skip
        if known:
            places, values = zip(*known, strict=True)
            estimates = [100 * each.estimate for each in values]
            ends = [
                [max(0.0, 100 * (each.estimate - each.low)) for each in values],
                [max(0.0, 100 * (each.high - each.estimate)) for each in values],
            ]
            axes.errorbar(estimates, places, xerr=ends, fmt=marker, color=colour, markersize=4,
                          linewidth=1.2, capsize=2, label=name)  # fmt: skip
    axes.axvline(0.0, color=figure.THEORY, linewidth=0.8)
    axes.set_xscale("symlog", linthresh=_LINEAR_PERCENT)
    low, high = axes.get_xlim()
    ticks = [sign * tick for tick in _TICKS for sign in (-1, 1) if low <= sign * tick <= high]
    axes.set_xticks(sorted({0, *ticks}))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(found)), [plain(each.workload) for each in found], fontsize=8)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_xlabel("relative difference of times, %")
    canvas.legend(loc="outside upper center", ncols=len(_MARKERS))


def _finite(data: Any) -> float | None:
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    return float(data) if is_number and abs(data) <= sys.float_info.max else None


def _mapping(data: Any) -> Mapping[str, Any]:
    return data if isinstance(data, Mapping) else {}
