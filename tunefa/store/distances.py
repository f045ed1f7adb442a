"""The distance of records from a workload on a target, in octaves (factors of two)."""

from __future__ import annotations

import functools
import math

from tunefa.errors import TunefaError
from tunefa.spec import matmul
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store.record import Record

FAR_OCTAVES = 3.0
"""The limit is, for example, sequences four times as long in a quarter of the batch. Defaults of
kernels depend on lengths, and are better beyond: with head_dim 64, sequences of 16k and of 512
tokens need different numbers of warpgroups."""

DTYPE_OCTAVES = 0.1
"""The distance of bf16 and fp16. Their instructions take the same time on every arch, and tiles of
both have the same bytes, so it only decides between records that are otherwise equally near."""
DECODE_OCTAVES = 4.0
"""Octaves of attention over a cache that count as one: tiles depend on no length, and splits follow
the lengths by themselves."""
OTHER_DEVICE_OCTAVES = 0.25
"""The least distance of two devices of an arch: their clocks and power limits differ."""
UNKNOWN_DEVICE_OCTAVES = 1.0
"""The distance to a device whose figures the arch's file lacks."""


def distance(a: Workload, b: Workload) -> float:
    """Returns the distance of two workloads of one family, in octaves (factors of two).

    It is the Euclidean distance of logarithms, because the benefit of block sizes and pipelines
    depends on ratios of lengths, not on differences. Both sequence lengths have the weight 1: they
    set the number of tiles, and the length of each tile's loop. The window has the weight 1 as
    well: it limits the length of the loop. batch x heads has the weight 1/2: it only changes the
    number of CTAs. So has the group: it only changes how often K and V are read again. Workloads of
    two ops are infinitely far apart. Octaves of attention over a cache count as `DECODE_OCTAVES`
    says, and its batch and heads have the weight 1/2 each, but where bits may depend on the batch.
    """
    if a.op != b.op:
        return math.inf
    if a.op == matmul.OP:
        return matmul.own(a).octaves_from(matmul.own(b))
    octaves = _octaves_of_attention(a, b)
    if a.op != "decode" or a.batchvariant or b.batchvariant:
        return octaves  # a config for any batch is one for all, others are for their own
    return octaves / DECODE_OCTAVES


def _octaves_of_attention(a: Workload, b: Workload) -> float:
    sequences, heads = math.log2(a.batch / b.batch), math.log2(a.heads / b.heads)
    # A config for any batch is one for a number of heads: no batch makes up for other heads.
    any_batch = a.op == "decode" and not (a.batchvariant or b.batchvariant)
    return math.hypot(
        0.5 * (math.hypot(sequences, heads) if any_batch else sequences + heads),
        math.log2(a.seqlen_q / b.seqlen_q),
        math.log2(a.seqlen_k / b.seqlen_k),
        _octaves(a.window_left, b.window_left, own_key=1),
        _octaves(a.window_right, b.window_right, own_key=0),
        0.5 * math.log2(a.group / b.group),
    )


def _octaves(a: int | None, b: int | None, own_key: int) -> float:
    """Returns the octaves between one side of two windows; 0 without a window.

    `own_key` is 1 for the left side, which also has the key on the diagonal.
    """
    if a is None or b is None:
        return 0.0
    return math.log2((a + own_key) / (b + own_key))


def apart(record: Record, workload: Workload, target: Target) -> float:
    """Returns how far a record of the target's arch is from a workload on the target, in octaves.

    It is the sum of the distances of workloads, dtypes and devices. It is a sum because the losses
    add up. A record that was not measured belongs to no device.
    """
    octaves = distance(record.workload, workload)
    if record.workload.dtype != workload.dtype:
        octaves += DTYPE_OCTAVES
    if record.device is None or record.device == target.device.name:
        return octaves
    return octaves + device_octaves(record.device, target)


@functools.lru_cache(maxsize=64)  # the records of a store name few devices
def device_octaves(name: str, target: Target) -> float:
    """Returns the distance of the device called `name` to the target's device, in octaves.

    It is 0 for the same name. Else it is `OTHER_DEVICE_OCTAVES` and the distance of their figures:
    the number of SMs has the weight 1, as it sets the number of waves; so has the tensor cores'
    rate per SM, as it sets what limits the kernel; the bandwidth of memory has the weight 1/2, as
    it only limits short loops. An H100's SXM board is 0.5 from an H200, its PCIe board 0.9.
    """
    own = target.device
    if name == own.name:
        return 0.0
    try:
        other = target.arch.device(name)
    except TunefaError:
        return UNKNOWN_DEVICE_OCTAVES
    if other.name != name or not target.is_known_product:  # a part of a chip, or a product like it
        return UNKNOWN_DEVICE_OCTAVES
    mine, theirs = (each.tensor_flops_per_clock_per_sm for each in (own, other))
    dtype = min(set(mine) & set(theirs))  # a limited product is limited in all dtypes alike
    return OTHER_DEVICE_OCTAVES + math.hypot(
        math.log2(other.sms / own.sms),
        math.log2(theirs[dtype] / mine[dtype]),
        0.5 * math.log2(other.hbm_bytes_per_s / own.hbm_bytes_per_s),
    )
