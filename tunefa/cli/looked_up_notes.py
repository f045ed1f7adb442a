"""Notes for a user on workloads whose calls look their config up for another one, see
`tunefa.spec.looked_up`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefa.spec import looked_up
from tunefa.spec.arch import NpuArch
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

_WHY = {
    "decode": "attention over a cache runs one config for all batches and numbers of keys, so that "
    "a sequence has the same bits in every batch",
    "fwd": "flash_attention runs so few queries over so many keys as attention over a cache, whose "
    "kernels split keys",
}
"""By op: why calls look another workload up."""


def run_as(workload: Workload, target: Target) -> Workload:
    """Returns the workload that calls of this one run as on a chip."""
    if isinstance(target.arch, NpuArch):  # it has one op
        return workload
    return looked_up.run_as(workload, target.device.sms)


def asked(workload: Workload, target: Target) -> Workload:
    """Returns the workload that calls of this one look their config up for on a chip."""
    return looked_up.of_record(run_as(workload, target))


def of_search(workload: Workload, target: Target) -> str:
    """The note on a search for a workload that its calls do not look up; empty for others."""
    own = asked(workload, target)
    if own == workload:
        return ""
    effect = {
        "decode": f"It is looked up for {own}. A record of {workload} serves calls only if none "
        "is nearer to that. For a config of one batch and size alone, search with --batch-variant",
        "fwd": f"A record that is measured for {workload} on this device ends that: search {own} "
        "instead",
    }
    return f"{workload}: {_WHY[workload.op]}. {effect[workload.op]}."


def of_explanation(workload: Workload, runs: Workload) -> str:
    """The note on a workload whose calls run as another one, which is explained."""
    return f"{workload}: {_WHY[workload.op]}. So {runs} is explained."


def of_several(merged: Mapping[Workload, Sequence[Workload]]) -> list[str]:
    """A note for each workload that is searched for other ones, which are given."""
    said = []
    for searched, others in merged.items():
        for op in ("decode", "fwd"):
            own = [each for each in others if each.op == op]
            if own:
                more = f" and {len(own) - 1} more" if own[1:] else ""
                verb = "are" if own[1:] else "is"
                said.append(f"{own[0]}{more} {verb} searched as {searched}: {_WHY[op]}.")
    return said
