"""`triton.Config` lines, for kernels of one's own that take the same parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tunefa.record import Record

SUFFIXES = (".triton.py",)
DESCRIPTION = "Python: a list of triton.Config per workload, for @triton.autotune"

# Arguments of triton.Config itself; everything else of a config is a parameter of the kernel.
_LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")

_HEAD = '''\
"""Tuned Triton configs by workload, written by tunefa.

@triton.autotune(configs=CONFIGS["<workload>"], key=[]) uses those of one workload.
"""

import triton

CONFIGS = {
'''


def holds(record: Record) -> bool:
    """Whether it is of a Triton kernel."""
    return "num_warps" in record.config


def dump(records: Sequence[Record]) -> str:
    """A Python module whose `CONFIGS` maps a workload to its configs, best first.

    A config without num_warps is no Triton kernel's; a comment says that it was left out.
    """
    lines = [_HEAD]
    ranked = sorted(records, key=lambda record: (str(record.workload), record.rank))
    for workload, group in groupby(ranked, key=lambda record: str(record.workload)):
        configs = []
        for record in group:
            if holds(record):
                configs.append(f"        # {workload}: {record.summary}\n")
                configs.append(f"        {_config_line(record.config)},\n")
            else:
                lines.append(f"    # left out, no num_warps: {workload}: {record.summary}\n")
        if configs:
            lines.extend([f"    {workload!r}: [\n", *configs, "    ],\n"])
    return "".join([*lines, "}\n"])


def _config_line(config: Mapping[str, Any]) -> str:
    kernel_args = {key: value for key, value in config.items() if key not in _LAUNCH_OPTIONS}
    launch_args = {key: config[key] for key in _LAUNCH_OPTIONS if key in config}
    if launch_args.get("maxnreg") == 0:  # ours for "no limit", which Triton spells None
        launch_args["maxnreg"] = None
    arguments = [repr(kernel_args), *(f"{key}={value!r}" for key, value in launch_args.items())]
    return f"triton.Config({', '.join(arguments)})"
