"""The section of winners: the best config of each workload, chip by chip."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tunefa.costmodel.roofline import Roofline, roofline
from tunefa.errors import TunefaError
from tunefa.experiments.table import NO_VALUE, Table, number
from tunefa.report.content import STORE, Content
from tunefa.report.part import Part, Section
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target
from tunefa.store.prediction import COVERAGE, Interval
from tunefa.store.record import Record

HEAD = ("workload", "kernel", "time\nus", "TFLOP/s", "share of roofline\n%", "bound by", "origin",
        "date")  # fmt: skip
CONFIG_HEAD = ("workload", "config", "made with")
WORDS = frozenset({"workload", "kernel", "bound by", "origin", "config", "made with"})
_VERSIONS = ("tunefa", "triton", "compiler", "torch", "driver")


def section(content: Content) -> Section:
    """Returns the winners, in a table for each chip."""
    parts = [Part(chip, _tables(records)) for chip, records in by_chip(content.records)]
    return Section(
        name="winners",
        title="Winners",
        about="The fastest known config of each workload, and its median time. The share of the "
        "roofline is the least time that the chip needs, by its peak rates at the boost clock, "
        "divided by the median. Measured times come from a device; predicted ones from the cost "
        "model, and no device ran them: an interval in parentheses holds a measurement with a "
        f"probability of {COVERAGE:.0%}.",
        parts=parts,
        empty="There are no records to show: `tunefa search` makes them.",
        remarks=content.remarks.get(STORE, ()),
    )


def by_chip(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Returns the records of each chip and origin under its name, sorted by workload."""
    ordered = sorted(records, key=lambda record: (chip(record), str(record.workload)))
    return [(name, list(group)) for name, group in groupby(ordered, key=chip)]


def chip(record: Record) -> str:
    """The chip and the origin of a record, such as `NVIDIA H200 (sm90), measured`."""
    name = f"{record.device} ({record.arch})" if record.device else record.arch
    return f"{name}, {record.objective}"


def target_of(record: Record) -> Target | None:
    """The chip of a record; None if this tunefa does not know it."""
    try:
        arch = archs.load(record.arch)
        return Target(arch, arch.device(record.device))
    except TunefaError:
        return None


def bounds(record: Record) -> Roofline | None:
    """The roofline of a record's workload on its chip; None if the chip is not known."""
    target = target_of(record)
    return None if target is None else roofline(record.workload, target)


def _tables(records: Sequence[Record]) -> list[Table]:
    """The table of times, and that of configs, whose texts are long."""
    times = [_times(record) for record in records]
    configs = [
        [str(record.workload), config_text(record.config), _made_with(record)] for record in records
    ]
    return [
        Table("Times", HEAD, times, words=WORDS),
        Table("Configs", CONFIG_HEAD, configs, words=WORDS),
    ]


def _times(record: Record) -> list[str]:
    found = bounds(record)
    interval = Interval.of(record)
    return [
        str(record.workload),
        record.kernel,
        number(record.median_us, 1) + (f" ({interval})" if interval else ""),
        number(record.tflops, 1),
        number(100 * found.least_us / record.median_us if found else None, 1),
        found.bound_by if found else NO_VALUE,
        f"{record.objective}, {record.mode}" if record.mode else record.objective,
        str(record.provenance["date"])[:10],
    ]


def _made_with(record: Record) -> str:
    made = record.provenance
    return ", ".join(_version(name, made[name]) for name in _VERSIONS if made.get(name))


def _version(name: str, value: object) -> str:
    return str(value) if name == "compiler" else f"{name} {value}"


def config_text(config: dict[str, object]) -> str:
    """Writes a config as `BLOCK_M=128 BLOCK_N=64`."""
    return " ".join(f"{name}={value}" for name, value in config.items())
