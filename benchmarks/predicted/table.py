"""The tables of docs/model.md: predictions beside what was measured, one table for each device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import markdown
from benchmarks.predicted.rows import Measurement, Racer
from tunefa.spec.workload import Workload

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"
MARK = "predicted"
HEAD = (
    "workload",
    "best",
    "predicted winner",
    "over the best",
    "over the default",
    "default",
    "runtime's choice",
    "the model had said",
    "inside",
)
_Key = tuple[str, str | None]


def write(measurements: Sequence[Measurement], page: Path = PAGE) -> str:
    """Writes the tables into the page, between their marks, and returns them.

    Of a workload that was measured several times, the last measurement counts.
    """
    tables: dict[_Key, dict[str, Measurement]] = {}
    for each in measurements:
        key = each.prediction.device, each.prediction.made.get("without")
        tables.setdefault(key, {})[each.workload] = each
    text = "\n".join(
        _section(key, [*found.values()]) for key, found in sorted(tables.items(), key=str)
    )
    page.write_text(markdown.filled(page.read_text(encoding="utf-8"), MARK, text), encoding="utf-8")
    return text


def _section(key: _Key, found: Sequence[Measurement]) -> str:
    """The table of one device, and what was left out of it."""
    device, without = key
    title = device if without is None else f"{device}, with a model that never saw an {without}"
    lines = [HEAD, *map(_cells, found), *_summary(found)]
    remarks = [
        f"{_short(each)}: {role} left out ({why})."
        for each in found
        for role, why in each.left_out.items()
    ]
    made = {**found[-1].made_with, **found[-1].prediction.made}
    versions = ", ".join(f"{name} {value}" for name, value in made.items() if value is not None)
    return "\n".join([f"{title}:\n", markdown.table(lines), *remarks, f"Made with {versions}.\n"])


def _cells(each: Measurement) -> list[str]:
    """The row of one workload; an empty cell is what was left out."""
    flops, winner = Workload.parse(each.workload).flops, each.prediction.winner
    rate = {name: _rate(flops, each.racer(name)) for name in ("predicted", "default", "runtime")}
    best = min(each.racers, key=lambda racer: racer.excess)
    ends = (f"{flops / us / 1e6:.0f}" for us in (winner.expected_us, winner.high_us, winner.low_us))
    said = "{} ({} to {})".format(*ends)
    return [
        _short(each),
        _rate(flops, best),
        rate["predicted"],
        _percent(over_best(each)),
        _percent(over_default(each)),
        rate["default"],
        rate["runtime"],
        said,
        {True: "yes", False: "no", None: ""}[inside(each)],
    ]


def over_best(each: Measurement) -> float | None:
    """The relative excess time of the predicted winner over the best; None without a race."""
    racer = each.racer("predicted")
    return None if racer is None else racer.excess


def over_default(each: Measurement) -> float | None:
    """The relative excess time of the predicted winner over the default; None without both."""
    winner, default = each.racer("predicted"), each.racer("default")
    if winner is None or default is None:
        return None
    return (1.0 + winner.excess) / (1.0 + default.excess) - 1.0


def inside(each: Measurement) -> bool | None:
    """Whether the predicted winner's time is in the model's interval; None without a race."""
    winner, racer = each.prediction.winner, each.racer("predicted")
    return None if racer is None else winner.low_us <= racer.median_us <= winner.high_us


def _summary(found: Sequence[Measurement]) -> list[list[str]]:
    """The last rows: medians, worst cases, and how many times are in their intervals."""
    columns = [
        [us for each in found if (us := f(each)) is not None] for f in (over_best, over_default)
    ]
    held = [each for each in map(inside, found) if each is not None]
    if not held:
        return []
    blank = ["", "", ""]
    medians, worst = ([_percent(f(column)) for column in columns] for f in (_median, _worst))
    share = f"{sum(held)} of {len(held)}"
    return [
        ["median", *blank[:2], *medians, *blank, share],
        ["worst", *blank[:2], *worst, *blank, ""],
    ]


def _median(column: Sequence[float]) -> float | None:
    return median(column) if column else None


def _worst(column: Sequence[float]) -> float | None:
    return max(column, default=None)


def _rate(flops: float, racer: Racer | None) -> str:
    """The speed in TFLOP/s."""
    return "" if racer is None else f"{flops / racer.median_us / 1e6:.0f}"


def _percent(excess: float | None) -> str:
    return "" if excess is None else f"{excess:+.1%}"


def _short(each: Measurement) -> str:
    """The workload without what is the same in all."""
    return markdown.short(Workload.parse(each.workload))
