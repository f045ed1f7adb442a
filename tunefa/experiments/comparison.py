"""The tables and the plot of `tunefa bench compare`, and the sentences about all workloads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunefa.errors import TunefaError
from tunefa.experiments import figure
from tunefa.experiments.compare import NAME, OURS
from tunefa.experiments.document import Document, Row
from tunefa.experiments.table import Table, number
from tunefa.measure import peers

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Contest
    from tunefa.measure.score import Score

_HEAD = ("contestant", "median\nus", "spread", "TFLOP/s", "GB/s", "of\nmatmul", "of\ncopy",
         "error", "worst\nrow")  # fmt: skip
_NOTES = (
    "spread: the quartiles' distance over the median. FLOPs count visible (query, key) pairs only. "
    "GB/s count q, k, v, the output and the logsumexp once; of a backward pass, their gradients "
    "too. error: against fp64, relative to the norm of all rows compared; worst row: the same of "
    "one row."
)


_LEAST_S = 0.5
_LABEL = 24
"""The most characters of a name in the plot: tunefa's own names have fewer."""


def check(document: Document, where: str) -> None:
    """Raises TunefaError, which begins with `where`, if a document is no comparison."""
    if document.experiment != NAME:
        raise TunefaError(
            f"{where} holds the experiment {document.experiment!r}: "
            f"tunefa bench {document.experiment} --from {where}"
        )
    try:
        tables(document)
        summary(document)
    except TunefaError as error:
        raise TunefaError(f"{where}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise TunefaError(f"{where} has missing or wrong fields ({what})") from error


def tables(document: Document) -> list[Table]:
    """Returns a table for each workload. Raises TunefaError for damaged rows."""
    return [_table(row) for row in document.rows]


def summary(document: Document) -> list[str]:
    """Returns sentences about all workloads: how often tunefa is ahead, who is absent, what the
    columns say."""
    said = []
    ratios = [ratio for row in document.rows if (ratio := over_the_best_peer(_read(row)))]
    if len(ratios) > 1:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        faster = sum(ratio > 1.0 for ratio in ratios)
        span = f"{min(ratios):.3f} to {max(ratios):.3f}"
        said.append(
            f"tunefa is ahead at {faster} of {len(ratios)} workloads. Its speed over that of the "
            f"best peer: {mean:.3f} in the geometric mean ({span})."
        )
    absent = document.settings.get("absent", {})
    said += [f"absent: {title(name)}: {why}" for name, why in absent.items()]
    versions = ", ".join(f"{name} {version}" for name, version in document.made_with.items())
    return [*said, _NOTES, *([f"{versions}."] if versions else [])]


def draw(document: Document, canvas: Any) -> None:
    """Draws the speeds in TFLOP/s, a row for each workload, into an empty matplotlib figure."""
    axes = canvas.add_subplot()
    contests = [_read(row) for row in document.rows]
    names = list(dict.fromkeys(name for each in contests for name in each.scores))
    markers = "oDsv^P*X<>"
    for place, name in enumerate(sorted(names, key=lambda each: each != OURS)):
        found = [
            (each.scores[name].tflops(each.workload), row)
            for row, each in enumerate(contests)
            if name in each.scores
        ]
        axes.plot(
            *zip(*found, strict=True),
            markers[place % len(markers)],
            color=figure.COLOURS[place % len(figure.COLOURS)],
            markersize=8 if name == OURS else 5,
            label=title(name)[:_LABEL].replace("$", r"\$"),
        )
    axes.set_yticks(range(len(contests)), [str(each.workload) for each in contests], fontsize=8)
    axes.set_ylim(max(1, len(contests)) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("TFLOP/s")
    if names:
        canvas.legend(loc="outside upper center", ncols=4)


def over_the_best_peer(contest: Contest) -> float | None:
    """Returns tunefa's speed divided by that of the fastest peer; None if either is missing."""
    peer = best_peer(contest)
    if peer is None or OURS not in contest.scores:
        return None
    return contest.scores[peer].median_us / contest.scores[OURS].median_us


def best_peer(contest: Contest) -> str | None:
    """Returns the fastest contestant that is not tunefa; None if there is none."""
    others = {name: score.median_us for name, score in contest.scores.items() if name != OURS}
    return min(others, key=lambda name: others[name], default=None)


def title(name: str) -> str:
    """The name of a contestant in tables; unknown ones keep theirs."""
    return peers.load(name).title if name in peers.names() else name


def _table(row: Row) -> Table:
    contest = _read(row)
    ceilings = row.get("ceilings") or {}
    by_time = sorted(contest.scores.items(), key=lambda each: each[1].median_us)
    lines = [_cells(name, score, contest, ceilings) for name, score in by_time]
    words = frozenset(_HEAD[:1])
    return Table(str(contest.workload), _HEAD, lines, _remarks(contest, row), words)


def _read(row: Row) -> Contest:
    from tunefa.measure.contest import Contest

    contest = Contest.from_data(row)
    ceilings = row.get("ceilings")
    if ceilings is not None and not all(_is_rate(ceilings, name) for name in _RATES):
        raise TunefaError(f"the ceilings of {contest.workload} are no rates")
    return contest


_RATES = ("matmul_tflops", "copy_gb_per_s")


def _is_rate(ceilings: Any, name: str) -> bool:
    value = ceilings.get(name) if isinstance(ceilings, Mapping) else None
    return isinstance(value, int | float) and value > 0


def _cells(
    name: str, score: Score, contest: Contest, ceilings: Mapping[str, float]
) -> tuple[str, ...]:
    low, high = score.spread
    tflops, rate = score.tflops(contest.workload), score.gb_per_s(contest.workload)
    mark = "*" if contest.mode != "eager" and not score.captured else ""
    digits = 1 if tflops < 100 else 0
    return (
        title(name) + mark,
        number(score.median_us, 1),
        f"{(high - low) / score.median_us:.1%}",
        number(tflops, digits),
        number(rate, 1 if rate < 10 else 0),
        *(_share(each, ceilings.get(of)) for each, of in zip((tflops, rate), _RATES, strict=True)),
        *(f"{error:.1e}".replace("e-0", "e-") for error in (score.error, score.worst_row)),
    )


def _share(rate: float, ceiling: float | None) -> str:
    return "–" if ceiling is None else f"{rate / ceiling:.0%}"


def _remarks(contest: Contest, row: Row) -> list[str]:
    """The sentences below a table: who is ahead, what tunefa ran, the ceilings, who is left out."""
    said = []
    ratio, peer = over_the_best_peer(contest), best_peer(contest)
    if ratio is not None and peer is not None:
        said.append(f"over the best peer: {ratio:.3f} (tunefa's speed over that of {title(peer)})")
    if (ran := row.get("ran")) is not None:
        config = "".join(f"{name}={value} " for name, value in ran["config"].items())
        said.append(f"tunefa ran {ran['kernel']} {config}({ran['why']})")
    if (ceilings := row.get("ceilings")) is not None:
        said.append(
            f"ceilings of this run: matmul {number(ceilings['matmul_tflops'], 1)} TFLOP/s "
            f"({ceilings.get('dtype')}), copy {number(ceilings['copy_gb_per_s'])} GB/s"
        )
    if state := _state(contest):
        said.append(state)
    if any(contest.mode != "eager" and not score.captured for score in contest.scores.values()):
        said.append("* not captured in a CUDA graph: the longer of the device's and host's times")
    return said + _left_out(contest.left_out)


def _left_out(reasons: Mapping[str, str]) -> list[str]:
    """One line for each reason, with all contestants that it is true of."""
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(title(name))
    return [f"left out: {_listed(each)}: {why}" for why, each in names.items()]


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _state(contest: Contest) -> str | None:
    """The clocks and the power meanwhile, and what disturbed them; None where nothing was read.

    NVML's power is the mean of the last second (NVML API reference, nvmlDeviceGetPowerUsage), so
    its highest reading is said, and none where the calls took less than half a second.
    """
    device = contest.device
    if not device.get("watched"):
        return None
    took_s = sum(sum(score.samples_us) for score in contest.scores.values()) / 1e6
    mhz = "–".join(map(str, dict.fromkeys(device["sm_mhz"])))
    watts = f", up to {device['power_w'][1]} W" if took_s >= _LEAST_S else ""
    disturbed = f"; disturbed: {device['disturbance']}" if device.get("disturbance") else ""
    return f"device meanwhile: {mhz} MHz{watts}{disturbed}"
