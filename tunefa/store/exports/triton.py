"""Export to `triton.Config` lines, for users' own kernels with tile sizes of the same names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.store import prediction
from tunefa.store.record import Record

SUFFIXES = (".triton.py",)
DESCRIPTION = "Python: a list of triton.Config per workload, for @triton.autotune, for one arch"

# Arguments of triton.Config itself.
_LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_TILE_SIZE = "BLOCK_"
"""The beginning of the names of tile sizes, as in Triton's tutorials. A kernel's other parameters
mean nothing to another kernel, so they are not exported."""

_HEAD = '''\
"""Tuned Triton configs by workload, written by tunefa{arch}.

@triton.autotune(configs=CONFIGS["<workload>"], key=[]) uses those of one workload.

They were tuned on tunefa's kernel: a good start, not the measured best of another one. Only what
kernels have in common is here: tile sizes, and the options of triton.Config.
"""

import triton

CONFIGS = {{
'''


def holds(record: Record) -> bool:
    """Returns whether the record is of a Triton kernel, for NVIDIA GPUs or for NPUs."""
    return is_of_gpu(record) or _is_of_npu(record)


def is_of_gpu(record: Record) -> bool:
    """Returns whether the record is of a Triton kernel for GPUs, which computes no functions of the
    user.

    An unknown kernel counts as one if its config has num_warps.
    """
    if record.kernel in kernels.names():
        return kernels.load(record.kernel).language == "triton"
    return not record.functions and "num_warps" in record.config


def require_one_arch(name: str, records: Sequence[Record]) -> None:
    """Raises TunefaError if the records are of more than one arch, for a format that needs one."""
    archs = sorted({record.arch for record in records})
    if len(archs) > 1:
        raise TunefaError(
            f"a {name} file holds configs for one arch, and there are records of "
            f"{', '.join(archs)}: name one of them with --arch"
        )


def dump(records: Sequence[Record]) -> str:
    """Returns a Python module whose `CONFIGS` maps a workload to its configs, the best first.

    Configs for NPUs have options that only triton-ascend takes. Comments name the records that are
    left out: those of other languages, and those whose config stands there already. Raises
    TunefaError if the configs would be those of several archs.
    """
    held = [record for record in records if holds(record)]
    require_one_arch("triton", held)
    arch = ""
    if held:
        arch = f" for {held[0].arch}" + (", for triton-ascend" if _is_of_npu(held[0]) else "")
    return "".join([_HEAD.format(arch=arch), *_entries(records), "}\n"])


def _entries(records: Sequence[Record]) -> Iterator[str]:
    """Yields, for each workload, comments on records that are left out, then its configs."""
    ranked = sorted(records, key=lambda record: (str(record.workload), record.rank))
    for workload, group in groupby(ranked, key=lambda record: str(record.workload)):
        configs: dict[str, str] = {}
        for record in group:
            line = _line(record) if holds(record) else ""
            if not line:
                yield f"    # left out, not a Triton kernel: {workload}: {record.summary}\n"
            elif line in configs:
                yield f"    # left out, the same config: {workload}: {record.summary}\n"
            else:
                first, *others = prediction.sentences(record)
                comments = [f"{workload}: {first}", *others]
                said = "".join(f"        # {comment}\n" for comment in comments)
                configs[line] = f"{said}        {line},\n"
        if configs:
            yield from (f"    {workload!r}: [\n", *configs.values(), "    ],\n")


def _is_of_npu(record: Record) -> bool:
    here = record.kernel in kernels.names()
    return here and kernels.load(record.kernel).language == "ascend"


def _line(record: Record) -> str:
    """The source text of the record's triton.Config."""
    parameters, options = record.config, _launch_options(record.config)
    if _is_of_npu(record):
        parameters, options = kernels.load(record.kernel).module.triton_config(record.config)
    tile = {name: value for name, value in parameters.items() if name.startswith(_TILE_SIZE)}
    return f"triton.Config({', '.join([repr(tile), *(f'{k}={v!r}' for k, v in options.items())])})"


def _launch_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of triton.Config in a config; a maxnreg of 0 means no limit, its default."""
    options = {name: config[name] for name in _LAUNCH_OPTIONS if name in config}
    return {name: value for name, value in options.items() if (name, value) != ("maxnreg", 0)}
