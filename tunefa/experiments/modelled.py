"""Times that are computed, not measured, for chips that are not there.

tunefa's own time is that of the config which the runtime would choose, by the cost model and what
is known of that kernel. Two others stand beside it:

* Attention in PyTorch's operators is a chain of kernels. Each moves its operands through the L2
  cache or the HBM once, and the products also need the tensor cores, for all pairs, as an operator
  knows nothing of the mask. The longer of the two counts, and a launch is added to each.
* FlashAttention-2 is the cost model's time for the tiles that its sources choose by head_dim, with
  mma.sync and copies by threads. It is what scaled_dot_product_attention runs by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel.anchor import Anchor
from tunefa.errors import TunefaError
from tunefa.runtime import choose
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import GpuArch
from tunefa.spec.target import Target
from tunefa.spec.tiling import Tiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import DTYPES, Workload
from tunefa.store import lookup
from tunefa.store import results as store
from tunefa.store.lookup import Choice

L2_SHARE = 0.5
"""The share of the L2 cache that one operator's result may take and still be there for the next:
its operands and the lines that are being written need the rest."""


FLASH_ATTENTION_2_ON_HOPPER = 1.25
"""The time of FlashAttention-2 on an H200 over what the cost model says of its tiles: the median of
36 workloads with head_dim 64 to 256 (docs/benchmarks.md), which lie between 1.07 and 1.52. On other
chips it was never compared."""


@dataclass(frozen=True)
class Ours:
    """The config that the runtime would choose, and the time that it is expected to take."""

    choice: Choice
    time_us: float


def ours(workload: Workload, target: Target) -> Ours:
    """Returns tunefa's choice and its expected time. Raises TunefaError where no kernel serves."""
    known = store.default_store()
    serving = kernels.serving(workload, target.arch)
    choice = choose.choose(known, workload, target, serving)
    ranked = lookup.by_trust(known.records(), workload, target)
    anchor = Anchor.of(ranked, workload, target, serving)
    expected = anchor.expected(choice.kernel, choice.config)
    return Ours(choice, expected.time_us)


@dataclass(frozen=True)
class Operator:
    """One kernel or copy of attention in PyTorch's operators: its FLOPs, and the bytes it moves."""

    name: str
    flops: int
    bytes: int
    through_l2: int
    """The bytes among these that another operator has just written."""


def operators(workload: Workload) -> list[Operator]:
    """Returns the kernels and copies of attention in PyTorch's operators, in their order, as
    tunefa/measure/peers/pytorch.py calls them.

    Scores are kept in the dtype of q. A mask is a matrix of booleans, made beforehand; masked_fill
    copies the scores and then fills the copy. K and V are read once for each query head. Raises
    TunefaError for packed sequences, which have no matrix of scores.
    """
    if workload.varlen:
        raise TunefaError(f"{workload} is packed: PyTorch's operators would need a padded batch")
    size = DTYPES[workload.dtype]
    pairs = workload.batch * workload.heads * workload.seqlen_q * workload.seqlen_k
    rows = workload.batch * workload.heads * workload.seqlen_q
    keys = workload.batch * workload.heads * workload.seqlen_k
    scores = pairs * size
    inputs, outputs = ((rows + keys) * columns * size for columns in _columns(workload))
    passes = [Operator(name, 0, 2 * scores, scores) for name in _passes(workload)]
    if workload.band != (None, None):
        mask = workload.seqlen_q * workload.seqlen_k
        passes.append(Operator("copy for the mask", 0, 2 * scores, scores))
        passes.append(Operator("mask", 0, 2 * scores + mask, scores))
    return [
        Operator("Q K^T", 2 * pairs * workload.head_dim, inputs + scores, 0),
        *passes,
        Operator("softmax", 0, 2 * scores, scores),
        Operator("P V", 2 * pairs * workload.head_dim_v, scores + outputs, scores),
    ]


def _columns(workload: Workload) -> tuple[int, int]:
    return workload.head_dim, workload.head_dim_v


def _passes(workload: Workload) -> list[str]:
    """The operators that rewrite all scores before a mask."""
    capped = ["divide by the cap", "tanh", "multiply by the cap"] if workload.softcap else []
    return ["scale", *capped]


def operators_us(workload: Workload, target: Target) -> float:
    """Returns the modelled time of attention in PyTorch's operators, in us."""
    device = target.device
    rate = _tensor_flops_per_us(workload, target)
    l2_per_us = device.l2_bytes_per_clock * device.boost_mhz
    hbm_per_us = device.hbm_bytes_per_s / 1e6
    total = 0.0
    for each in operators(workload):
        kept = each.through_l2 if each.through_l2 <= L2_SHARE * device.l2_bytes else 0
        moving = max(each.bytes / l2_per_us, (each.bytes - kept) / hbm_per_us)
        total += max(each.flops / rate, moving) + gpu_model.LAUNCH_US
    return total


def flash_attention_2_us(workload: Workload, target: Target) -> float | None:
    """Returns the modelled time of FlashAttention-2, in us, as PyTorch contains it; None where it
    does not run: on an NPU, and in fp32 and e4m3."""
    arch = target.arch
    if not isinstance(arch, GpuArch) or workload.dtype not in ("fp16", "bf16"):
        return None
    tile = flash_attention_2_tile(workload)
    time_us = gpu_model.predict(workload, arch, target.device, *tile).time_us
    return time_us * (FLASH_ATTENTION_2_ON_HOPPER if "wgmma" in arch.features else 1.0)


def flash_attention_2_tile(workload: Workload) -> tuple[Tiling, Resources]:
    """Returns the tile that FlashAttention-2 takes on sm80 and sm90, and what it needs of an SM.

    Source: hdim64 to hdim256 in flash_fwd_launch_template.h of FlashAttention 2.8: (BLOCK_M,
    BLOCK_N, warps) is (128, 128, 4) up to head_dim 64, (128, 64, 4) up to 128, and (128, 64, 8)
    beyond. Q, K and V have one stage each in shared memory. It has no e4m3 and no fp32.
    """
    largest = max(workload.head_dim, workload.head_dim_v)
    block_n, warps = (128, 4) if largest <= 64 else (64, 4) if largest <= 128 else (64, 8)
    columns = next(width for width in (32, 64, 96, 128, 192, 256) if largest <= width)
    tiling = Tiling(
        block_m=128,
        block_n=block_n,
        columns=columns,
        columns_v=columns,
        warps=warps,
        stages=1,
        copied_by_threads=True,
        max_registers=255,
        l2_section_heads=workload.batch * workload.heads,
        packed_heads=1,
        diagonal_n=block_n,
        warp_specialised=False,
    )
    smem_bytes = 2 * columns * (128 + 2 * block_n)
    return tiling, Resources(smem_bytes=smem_bytes, registers=255)


def _tensor_flops_per_us(workload: Workload, target: Target) -> float:
    dtype = "tf32" if workload.dtype == "fp32" else workload.dtype
    return target.device.tensor_flops_per_s(dtype) / 1e6
