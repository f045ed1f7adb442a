"""The latency model of NPUs: how long a FlashAttention forward takes on Ascend.

The times are modelled, not measured. A tile is M query rows that one core computes; a step takes it
past N keys. On a 910B3, a step takes about 3.5 us, however small its tile is, because the cube and
the vector cores pass their results through memory and wait for each other. The amount of work
matters only for tiles of about 128 x 128 and more. The latency model

    step_us = (3.49 ** 8 + (1.31 + 1.44e-4 * M * N + 8.7e-6 * M * D) ** 8) ** (1 / 8)

with head dimension D was fitted to 18 public measurements of one Triton kernel on that chip (no
mask, D 64 and 128, N from 32, with multibuffer, compiler 1.1.0). Its mean error there is 3.0 %.
Source: ZyEng-Art/flash_attn_npu, flash_attention_forward_tuned.json at 0fd1401,
https://github.com/ZyEng-Art/flash_attn_npu. It has not been compared with a device for masks, other
compilers, other head dimensions or other chips.
"""

from __future__ import annotations

import functools

import numpy as np

from tunefa.spec.arch import Device
from tunefa.spec.rounding import ceil_div, round_up
from tunefa.spec.tiling import NpuTiling
from tunefa.spec.workload import DTYPES, Workload

_MEGAHERTZ = 1800.0
"""The clock of a 910B3. The time on other chips is assumed to scale with the clock."""
LATENCY_US = 3.49
"""The least time of a step."""
_FIXED_US = 1.31
_US_PER_SCORE, _US_PER_OUTPUT = 1.44e-4, 8.7e-6
_SHARPNESS = 8
# What loading a block of K or V adds to a step without multibuffer. Both constants come from a
# simulation of the compiled code, which was fitted to the same measurements.
_LOAD_BYTES_PER_CLOCK, _LOAD_CLOCKS = 120.0, 520.0


def step_us(workload: Workload, device: Device, tiling: NpuTiling) -> float:
    """Returns the time of one step of one core, in us."""
    work = work_us(workload, tiling)
    step = float((LATENCY_US**_SHARPNESS + work**_SHARPNESS) ** (1 / _SHARPNESS))
    if not tiling.multibuffer:
        block_bytes = tiling.block_n * workload.head_dim * DTYPES[workload.dtype]
        step += 2 * (block_bytes / _LOAD_BYTES_PER_CLOCK + _LOAD_CLOCKS) / _MEGAHERTZ
    return step * _MEGAHERTZ / device.boost_mhz


def work_us(workload: Workload, tiling: NpuTiling) -> float:
    """Returns the part of a step's time that is not waiting, in us at a 910B3's clock."""
    scores, outputs = tiling.block_m * tiling.block_n, tiling.block_m * workload.head_dim
    return _FIXED_US + _US_PER_SCORE * scores + _US_PER_OUTPUT * outputs


def time_us(workload: Workload, device: Device, tiling: NpuTiling) -> float:
    """Returns the time of one launch, in us: that of the core with the most steps."""
    return steps(workload, device.sms, tiling.block_m, tiling.block_n) * step_us(
        workload, device, tiling
    )


@functools.lru_cache(maxsize=4096)  # most configs of a space share a few tiles
def steps(workload: Workload, cores: int, block_m: int, block_n: int) -> int:
    """Returns the steps of the core with the most; core i computes tiles i, i + cores, ..."""
    first = np.arange(0, workload.seqlen_q, block_m)
    ends = np.full(len(first), workload.seqlen_k)
    if workload.causal:
        seen = first + block_m + workload.seqlen_k - workload.seqlen_q
        ends = np.minimum(seen, workload.seqlen_k)
    of_head = ceil_div(ends, block_n)
    every = np.tile(of_head, workload.batch * workload.heads)
    padded = np.pad(every, (0, round_up(len(every), cores) - len(every)))
    return int(padded.reshape(-1, cores).sum(axis=0).max())
