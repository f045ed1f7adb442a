"""The cases that kernels are checked on: ragged shapes, their tensors, the reference's verdict.

Outputs are filled with NaN before the launch, so an element that is not written is an error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.measure.comparison import Comparison, Expected
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.attention_inputs import AttentionInputs

SOFTCAP = 1.5
"""The soft-cap that workloads with one are checked and timed with.

It is small enough to matter, as the scores of normal inputs have a standard deviation of 1. The
hardware's tanh, with an error of up to 2^-11 times the cap, stays within LSE_TOLERANCE."""


def ragged(workload: Workload, config: Config) -> Workload:
    """A small workload of the same kind with lengths that no tile divides, and two KV heads.

    seqlen_k exceeds seqlen_q, so that bottom-right and top-left causal masks differ. A window ends
    inside blocks, and the last rows do not see all keys. The batch has a sequence for each role of
    `tunefa.measure.hostile.roles`, so that one launch shows all: two, and packed ones five.
    A kernel with warpgroups has tiles of 64 rows for each of them (PTX ISA, wgmma: M is 64). For
    e4m3 there are enough keys that a kernel which starts a new sum every 512 keys
    (attention_fwd_cuda_sm90) does so twice.
    """
    rows = 64 * int(config.get("WARPGROUPS", 1))
    block_m, block_n = int(config.get("BLOCK_M", rows)), int(config.get("BLOCK_N", 64))
    seqlen_q = block_m + block_m // 2 + 1
    beyond = block_n + block_n // 2 + 1  # more than a block of keys, and no multiple of one
    left, right = workload.window_left, workload.window_right
    left = left if left is None else min(left, beyond - 1)
    right = right if right is None else min(right, beyond)
    least_keys = 1200 if workload.dtype == "e4m3" else 0
    if left is not None or right is not None:
        seqlen_q += (0 if left is None else left + 1) + (right or 0) + 4 * block_n
    return replace(
        workload,
        batch=5 if workload.varlen else 2,
        heads=2 * workload.group,
        heads_kv=2,
        seqlen_q=seqlen_q,
        seqlen_k=max(seqlen_q, 2 * block_n, least_keys) + 13,
        window_left=left,
        window_right=right,
    )


def softcap(workload: Workload) -> float | None:
    """The soft-cap that the workload is checked and timed with; None if it has none."""
    return SOFTCAP if workload.softcap else None


def tensors(workload: Workload, device: str, seed: int | None = None) -> tuple[Any, ...]:
    """Returns fresh (q, k, v, out, lse, ...) on `device`: normal inputs, and outputs full of NaN.

    The shapes are those that a kernel's `arguments` takes. Dense tensors are (batch, heads, seqlen,
    head_dim) views of memory in the order (batch, seqlen, heads, head_dim), and lse is (batch,
    heads, seqlen_q). A `varlen` workload has (rows, heads, head_dim) tensors, an lse of (heads,
    rows), and cu_seqlens_q and cu_seqlens_k at the end. An e4m3 workload has the descales of q, k
    and v at the end: (batch, heads_kv) each, fp32, uniform between 0.5 and 1.5.
    """
    import torch

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    # PyTorch draws no e4m3 numbers, so bf16 ones are rounded; an output in e4m3 would be too
    # coarse.
    dtype = dtypes.get(workload.dtype, torch.bfloat16)
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    rows, keys = (sum(each) for each in zip(*workload.lengths, strict=True))

    def stored(total: int, heads: int, head_dim: int) -> tuple[int, ...]:
        if workload.varlen:
            return total, heads, head_dim
        return workload.batch, total // workload.batch, heads, head_dim

    def normal(total: int, heads: int, head_dim: int) -> Any:
        shape = stored(total, heads, head_dim)
        made = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        return made.to(torch.float8_e4m3fn) if workload.dtype == "e4m3" else made

    def nan(shape: tuple[int, ...], dtype: Any) -> Any:
        return torch.full(shape, float("nan"), device=device, dtype=dtype)

    made = [
        normal(rows, workload.heads, workload.head_dim),
        normal(keys, workload.heads_kv, workload.head_dim),
        normal(keys, workload.heads_kv, workload.head_dim_v),
        nan(stored(rows, workload.heads, workload.head_dim_v), dtype),
    ]
    if workload.varlen:
        lse = nan((workload.heads, rows), torch.float32)
    else:
        made = [each.transpose(1, 2) for each in made]
        lse = nan((workload.batch, workload.heads, workload.seqlen_q), torch.float32)
    return *made, lse, *_last_tensors(workload, generator)


def _last_tensors(workload: Workload, generator: Any) -> list[Any]:
    """Returns cu_seqlens_q and cu_seqlens_k of packed sequences, the descales of e4m3, or
    nothing."""
    import torch

    device = generator.device
    if workload.varlen:
        return [
            torch.tensor([0, *lengths], device=device).cumsum(0).int()
            for lengths in zip(*workload.lengths, strict=True)
        ]
    if workload.dtype == "e4m3":
        of_heads = (3, workload.batch, workload.heads_kv)
        return list(0.5 + torch.rand(of_heads, generator=generator, device=device))
    return []


def compare(workload: Workload, made: tuple[Any, ...], scale: float, dtype: Any) -> Comparison:
    """Compares the outputs that a kernel wrote into `made` with the reference, computed in `dtype`.

    `made` are tensors that `tensors` made for the workload.
    """
    expected = Expected.of(workload, inputs(workload, made, scale), dtype)
    return expected.compare(*made[3:5])


def inputs(workload: Workload, made: tuple[Any, ...], scale: float) -> AttentionInputs:
    """The inputs of the reference, from tensors that `tensors` made for the workload."""
    from tunefa.measure.attention_inputs import AttentionInputs

    q, k, v, _, _, *more = made
    mask = workload.window_left, workload.window_right, softcap(workload)
    extra: dict[str, Any] = {"cu_seqlens": tuple(more)} if workload.varlen else {"descales": more}
    return AttentionInputs(q, k, v, workload.causal, scale, *mask, **extra)
