"""Export to `triton.Config` lines, for users' own kernels that have the same parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from tunefa.spec import kernel as kernels
from tunefa.store.record import Record

SUFFIXES = (".triton.py",)
DESCRIPTION = "Python: a list of triton.Config per workload, for @triton.autotune"

# Arguments of triton.Config itself. All others in a config are parameters of the kernel.
_LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")

_HEAD = '''\
"""Tuned Triton configs by workload, written by tunefa.

@triton.autotune(configs=CONFIGS["<workload>"], key=[]) uses those of one workload.
"""

import triton

CONFIGS = {
'''
_NPU_HEAD = """\

# The options of triton-ascend, which no other Triton takes.
if hasattr(triton.Config({}), "multibuffer"):
    CONFIGS |= {
"""


def holds(record: Record) -> bool:
    """Returns whether the record is of a Triton kernel, for NVIDIA GPUs or for NPUs."""
    return is_of_gpu(record) or _is_of_npu(record)


def is_of_gpu(record: Record) -> bool:
    """Returns whether the record is of a Triton kernel for GPUs.

    An unknown kernel counts as one if its config has num_warps.
    """
    if record.kernel in kernels.names():
        return kernels.load(record.kernel).language == "triton"
    return "num_warps" in record.config


def dump(records: Sequence[Record]) -> str:
    """Returns a Python module whose `CONFIGS` maps a workload to its configs, the best first.

    Configs for NPUs are added only where triton-ascend is installed as triton. Comments name the
    records that are left out because they are not of a Triton kernel.
    """
    of_npus = [record for record in records if _is_of_npu(record)]
    lines = [_HEAD, *_entries([each for each in records if each not in of_npus], "    "), "}\n"]
    if of_npus:
        lines += [_NPU_HEAD, *_entries(of_npus, "        "), "    }\n"]
    return "".join(lines)


def _entries(records: Sequence[Record], indent: str) -> Iterator[str]:
    """Yields, for each workload, comments on records that are left out, then its configs."""
    ranked = sorted(records, key=lambda record: (str(record.workload), record.rank))
    for workload, group in groupby(ranked, key=lambda record: str(record.workload)):
        configs = []
        for record in group:
            if holds(record):
                configs.append(f"{indent}    # {workload}: {record.summary}\n")
                line = _npu_line(record) if _is_of_npu(record) else _config_line(record.config)
                configs.append(f"{indent}    {line},\n")
            else:
                yield f"{indent}# left out, not a Triton kernel: {workload}: {record.summary}\n"
        if configs:
            yield from (f"{indent}{workload!r}: [\n", *configs, f"{indent}],\n")


def _is_of_npu(record: Record) -> bool:
    here = record.kernel in kernels.names()
    return here and kernels.load(record.kernel).language == "ascend"


def _npu_line(record: Record) -> str:
    parameters, options = kernels.load(record.kernel).module.triton_config(record.config)
    arguments = [repr(parameters), *(f"{key}={value!r}" for key, value in options.items())]
    return f"triton.Config({', '.join(arguments)})"


def _config_line(config: Mapping[str, Any]) -> str:
    kernel_args = {key: value for key, value in config.items() if key not in _LAUNCH_OPTIONS}
    launch_args = {key: config[key] for key in _LAUNCH_OPTIONS if key in config}
    if launch_args.get("maxnreg") == 0:  # 0 means no limit, which is None in Triton
        launch_args["maxnreg"] = None
    arguments = [repr(kernel_args), *(f"{key}={value!r}" for key, value in launch_args.items())]
    return f"triton.Config({', '.join(arguments)})"
