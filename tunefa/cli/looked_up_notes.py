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


def of_search(workload: Workload, target: Target) -> str:
    """The note on a search for a workload that its calls do not look up; empty for others."""
    if isinstance(target.arch, NpuArch):
        return ""
    asked = looked_up.of_call(workload, target.device.sms)
    if asked == workload:
        return ""
    effect = {
        "decode": f"It is looked up for {asked}. A record of {workload} serves calls only if none "
        "is nearer to that. A config for one batch and one size alone is one with --batch-variant",
        "fwd": f"A record of {workload} ends that: search {asked} instead",
    }
    return f"{workload}: {_WHY[workload.op]}. {effect[workload.op]}."


def of_sweep(merged: Mapping[Workload, Sequence[Workload]]) -> list[str]:
    """A note for each workload that a sweep searches for other ones, which are given."""
    said = []
    for asked, others in merged.items():
        for op in ("decode", "fwd"):
            own = [each for each in others if each.op == op]
            if own:
                more = f" and {len(own) - 1} more" if own[1:] else ""
                verb = "are" if own[1:] else "is"
                said.append(f"{own[0]}{more} {verb} searched as {asked}: {_WHY[op]}.")
    return said
