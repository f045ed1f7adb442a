"""How long a FlashAttention forward takes on Ascend, by a law of its steps: modelled, not measured.

On a 910B3, a step over keys takes about 3.5 us however small its tile is: what cube and vector
cores hand each other goes through memory, one after the other. Only from about 128 x 128 on, the
work counts. The law

    step_us = (3.49 ** 8 + (1.31 + 1.44e-4 * M * N + 8.7e-6 * M * D) ** 8) ** (1 / 8)

with M queries, N keys and head dimension D was fitted to 18 public measurements of one Triton
kernel there (full, D 64 and 128, N of 32 and more, with multibuffer, compiler 1.1.0), which it
meets within 3.0 % on average: ZyEng-Art/flash_attn_npu, flash_attention_forward_tuned.json at
0fd1401, https://github.com/ZyEng-Art/flash_attn_npu. For masks, other compilers, other head
dimensions and other chips nobody has compared it with a device.
"""

from __future__ import annotations

import functools

import numpy as np

from tunefa.spec.arch import Device
from tunefa.spec.rounding import ceil_div, round_up
from tunefa.spec.tiling import NpuTiling
from tunefa.spec.workload import DTYPES, Workload

_MEGAHERTZ = 1800.0
"""Of the 910B3: a chip with another clock is taken to be so much faster or slower."""
LATENCY_US = 3.49
"""Of a step, however small."""
_FIXED_US = 1.31
_US_PER_SCORE, _US_PER_OUTPUT = 1.44e-4, 8.7e-6
_SHARPNESS = 8
# What loading one block of keys or values adds to a step without multibuffer: constants of a
# simulation of the compiled code, fitted to the same measurements.
_LOAD_BYTES_PER_CLOCK, _LOAD_CLOCKS = 120.0, 520.0


def step_us(workload: Workload, device: Device, tiling: NpuTiling) -> float:
    """One step of one core, us."""
    work = work_us(workload, tiling)
    step = float((LATENCY_US**_SHARPNESS + work**_SHARPNESS) ** (1 / _SHARPNESS))
    if not tiling.multibuffer:
        block_bytes = tiling.block_n * workload.head_dim * DTYPES[workload.dtype]
        step += 2 * (block_bytes / _LOAD_BYTES_PER_CLOCK + _LOAD_CLOCKS) / _MEGAHERTZ
    return step * _MEGAHERTZ / device.boost_mhz


def work_us(workload: Workload, tiling: NpuTiling) -> float:
    """Of a step, what is not waiting, us at the clock of a 910B3."""
    scores, outputs = tiling.block_m * tiling.block_n, tiling.block_m * workload.head_dim
    return _FIXED_US + _US_PER_SCORE * scores + _US_PER_OUTPUT * outputs


def time_us(workload: Workload, device: Device, tiling: NpuTiling) -> float:
    """The core that finishes last, us: a program is a core and takes every so many tiles."""
    return steps(workload, device.sms, tiling.block_m, tiling.block_n) * step_us(
        workload, device, tiling
    )


@functools.lru_cache(maxsize=4096)  # of a space's tiles, whatever else a config holds
def steps(workload: Workload, cores: int, block_m: int, block_n: int) -> int:
    """Of the core that has the most."""
    first = np.arange(0, workload.seqlen_q, block_m)
    ends = np.full(len(first), workload.seqlen_k)
    if workload.causal:
        seen = first + block_m + workload.seqlen_k - workload.seqlen_q
        ends = np.minimum(seen, workload.seqlen_k)
    of_head = ceil_div(ends, block_n)
    every = np.tile(of_head, workload.batch * workload.heads)
    padded = np.pad(every, (0, round_up(len(every), cores) - len(every)))
    return int(padded.reshape(-1, cores).sum(axis=0).max())
