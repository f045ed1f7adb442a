"""The sentences that say on which devices of an arch the model's times were compared."""

from __future__ import annotations

import math
from typing import Any

from tunefa.cli.reports import text
from tunefa.spec.arch import Arch, NpuArch
from tunefa.store import prediction

_ARCH_WITH_DATA = "sm90"
_RESTS_ON = {
    "decode": "The constants of the model of attention over a cache were set on measurements on an "
    "H200, and compared with no others.",
    "bwd": "The times of the model of gradients were compared with measurements of a few workloads "
    "on an H200, and no constant was set on them.",
}
"""By op, for `_ARCH_WITH_DATA`: see docs/model.md."""
_NPU = (
    "The latency model was fitted to public measurements of an Ascend 910B3; its times were never "
    "compared with measurements on a device."
)


def to_data(arch: Arch, op: str = "fwd") -> list[dict[str, Any]]:
    """Plain data for `--json`: the comparisons of an op with devices of the arch, a kernel each.
    Errors are relative, on workloads that the model was not learned from."""
    from tunefa.costmodel.estimate import compared_with  # it brings numpy

    return [
        {
            "kernel": each.kernel,
            "devices": list(each.devices),
            "workloads": each.figures.workloads,
            "error": math.expm1(each.figures.sd),
            "comparison_error": math.expm1(each.figures.comparison_sd),
        }
        for each in compared_with(arch.name, op)
    ]


def sentence(arch: Arch, op: str = "fwd") -> str:
    """Returns on which devices of the arch the model's times of an op were compared with
    measurements, and how well they agreed; or that they never were, and what that means for the
    intervals."""
    if isinstance(arch, NpuArch):
        return _NPU
    found = to_data(arch, op)
    devices = dict.fromkeys(name for each in found for name in each["devices"])
    said = prediction.compared(arch.name, list(devices))
    figures = [
        f"{each['error']:.0%} for {each['kernel']} ({text.plural(each['workloads'], 'workload')})"
        for each in found
    ]
    if op != "fwd":
        if arch.name == _ARCH_WITH_DATA:
            said = _RESTS_ON.get(op, said)
        of_attention = f"error of the model of attention on {_ARCH_WITH_DATA}"
        return f"{said} The intervals of {op} assume the {of_attention}."
    if not figures and arch.name == _ARCH_WITH_DATA:  # nothing that was learned is installed
        return said
    if not figures:
        return f"{said} The intervals assume the error that it has on {_ARCH_WITH_DATA}."
    return f"{said} The error on workloads that it was not learned from: {', '.join(figures)}."
