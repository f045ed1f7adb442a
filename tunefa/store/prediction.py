"""The certainty of a prediction: the interval of its time, and the sentences about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from tunefa.store.record import Record

COVERAGE = 0.9
"""The probability that a measured time is in the interval of its prediction."""
_SDS = NormalDist().inv_cdf((1 + COVERAGE) / 2)
_UNLIKELY_SD = 10.0
"""An `sd` from here on is none of a model: it would mean a factor of 22,000."""
_WHOLE_FROM_US = 10.0
"""From here on, the ends of an interval are written without digits after the point."""


@dataclass(frozen=True)
class Interval:
    """The times, in us, between which a measurement is expected with the probability `COVERAGE`."""

    low_us: float
    high_us: float

    @classmethod
    def around(cls, time_us: float | None, sd: float | None) -> Interval | None:
        """Returns the interval of a predicted time; `sd` is the standard deviation of log(measured
        time / predicted time). None without a finite time, and where `sd` is unknown or 0."""
        if time_us is None or not sd or not math.isfinite(time_us):
            return None
        factor = math.exp(_SDS * sd)
        return cls(time_us / factor, time_us * factor)

    @classmethod
    def of(cls, record: Record) -> Interval | None:
        """Returns the interval of a predicted record; None for another, and for one from before
        records had an `sd`."""
        sd = record.provenance.get("predicted_sd")
        if record.objective != "predicted" or not isinstance(sd, float):
            return None
        return cls.around(record.median_us, sd) if 0 < sd < _UNLIKELY_SD else None

    def __str__(self) -> str:
        """`655 to 760`."""
        digits = 0 if self.low_us >= _WHOLE_FROM_US else 1
        return f"{self.low_us:,.{digits}f} to {self.high_us:,.{digits}f}"

    def to_data(self) -> list[float]:
        """Plain data: both ends."""
        return [self.low_us, self.high_us]


def sentences(record: Record) -> list[str]:
    """Returns what a reader must know of a record beside its config, one sentence each.

    Each is one line of printable text, as it becomes a comment in generated source and may come
    from an imported file. The first is its summary, with the interval of a predicted time. Of a
    prediction, the others say why its config is recommended, and on which devices the model was
    compared with measurements.
    """
    interval = Interval.of(record)
    said = [record.summary + (f", {COVERAGE:.0%} interval {interval} us" if interval else "")]
    if why := decision(record):
        said.append(f"Recommended: {why}")
    devices = record.provenance.get("compared_with")
    if record.objective == "predicted" and isinstance(devices, list):
        said.append(_one_line(compared(record.arch, devices)))
    return said


def decision(record: Record) -> str:
    """Returns why a search that predicted times recommends the config of its record, in one line;
    empty for other records, and for one that does not say it."""
    said = (record.certificate or {}).get("decision")
    return _one_line(said) if record.objective == "predicted" and isinstance(said, str) else ""


def compared(arch: str, devices: Sequence[object]) -> str:
    """Returns the sentence that says on which devices of an arch the model was compared with
    measurements; it never was where there are none."""
    if devices:
        names = ", ".join(map(str, devices))
        return f"The model's times were compared with measurements on {names}."
    return (
        f"The model's times were never compared with measurements on an {arch} device: its figures "
        "come from published data only."
    )


def _one_line(said: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in " ".join(said.split()))
