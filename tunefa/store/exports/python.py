"""Export to a Python module that needs only the standard library, for programs without tunefa."""

from __future__ import annotations

from collections.abc import Sequence
from pprint import pformat
from typing import Any

from tunefa.store import prediction
from tunefa.store.prediction import Interval
from tunefa.store.record import Record

SUFFIXES = (".py",)
DESCRIPTION = "Python: a module with config_for(workload), standard library only"

_HEAD = '''\
"""Tuned configs by workload, written by tunefa; needs only the standard library."""

# Best first: measured before predicted, then the fastest.
RECORDS = '''

_TAIL = '''

def config_for(workload: str, arch: "str | None" = None) -> dict:
    """The best config for a workload, spelled as in RECORDS; `arch` may be left out if it has one.

    Raises LookupError when there is none, and when the workload has configs for several archs.
    """
    archs = sorted({record["arch"] for record in RECORDS if record["workload"] == workload})
    if arch is None and len(archs) > 1:
        raise LookupError(f"{workload!r} has configs for {', '.join(archs)}: name one as arch")
    for record in RECORDS:
        if record["workload"] == workload and arch in (None, record["arch"]):
            return dict(record["config"])
    known = ", ".join(sorted({record["workload"] for record in RECORDS})) or "none"
    where = "" if arch is None else f" on {arch!r}"
    raise LookupError(f"no config for {workload!r}{where}; there are configs for: {known}")
'''


def _certainty(record: Record) -> dict[str, Any]:
    """For a prediction, the interval of its time and the sentences about it."""
    interval, (_, *remarks) = Interval.of(record), prediction.sentences(record)
    found = {"interval_us": interval and interval.to_data(), "remarks": remarks}
    return {name: value for name, value in found.items() if value}


def dump(records: Sequence[Record]) -> str:
    """Returns a Python module with the function `config_for(workload, arch=None)`."""
    entries = [
        {
            "workload": str(record.workload),
            "arch": record.arch,
            "device": record.device,
            "kernel": record.kernel,
            "objective": record.objective,
            "median_us": record.median_us,
            **_certainty(record),
            "config": record.config,
        }
        for record in sorted(records, key=lambda record: record.rank)
    ]
    return f"{_HEAD}{pformat(entries, sort_dicts=False, width=100)}\n{_TAIL}"
