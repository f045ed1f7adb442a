"""Predictions of different models of time are not compared: today's count.

A model is a version of the cost model, and what it has learned from measurements (`Record.model`).
Another model may expect all configs to be faster, so its lowest time says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefa.store.record import Record


def of_newest_model(records: Sequence[Record]) -> list[Record]:
    """Returns the records, in their order, without predictions by another than the newest model.

    For each arch, workload and objective, whatever the kernel is, that is the model of the newest
    record of the newest version.
    """
    newest: dict[tuple[object, ...], Record] = {}
    for record in records:
        held = newest.setdefault(_asked(record), record)
        if _age(record) > _age(held):
            newest[_asked(record)] = record
    return [record for record in records if record.model == newest[_asked(record)].model]


def _asked(record: Record) -> tuple[object, ...]:
    return record.arch, record.device, record.workload, record.objective


def _age(record: Record) -> tuple[int, float]:
    return record.model_version, record.timestamp
