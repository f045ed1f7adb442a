"""Whether a kernel computes attention: against a reference of higher precision, on ragged shapes.

The error is ||out - reference|| / ||reference||; NaN never passes. Outputs are filled with NaN
before the launch, so an element that is not written is an error too.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.attention_inputs import AttentionInputs

TOLERANCE = {"bf16": 8e-3, "fp16": 1e-3, "fp32": 2e-5, "e4m3": 6e-2}
"""Largest relative error by dtype: two to three times the error that rounding alone makes.

P and the output are rounded to the dtype. Half a unit in the last place is 2^-9 for bf16 (2e-3) and
2^-12 for fp16 (2.4e-4); for fp32 (2^-24) the order of summation dominates. In e4m3, P has a
relative error of up to 2^-4, 2.6e-2 in the root mean square over mantissas. V has random signs, so
the output has the same relative error."""
ROUNDING = {"bf16": 2e-3, "fp16": 2.5e-4, "fp32": 2e-6}
"""The least limit that a kernel is held to: half a unit in the last place of the dtype; for fp32
the 2^-22 of a product made of three tf32 products, with some room for sums."""
LSE_TOLERANCE = 1e-3
"""Largest absolute error of the logsumexp, which every dtype but e4m3 sums in full fp32."""
E4M3_LSE_TOLERANCE = 1e-2
"""Largest absolute error of the logsumexp in e4m3. Hopper adds e4m3 products with about 14 bits
(DeepSeek-V3, arXiv:2412.19437, section 3.5.2): scores around 32, before the scale, lose a few 2^-9.
"""
SOFTCAP = 1.5
"""The soft-cap that workloads with one are checked and timed with.

It is small enough to matter, as the scores of normal inputs have a standard deviation of 1. The
hardware's tanh, with an error of up to 2^-11 times the cap, stays within LSE_TOLERANCE."""


@dataclass(frozen=True)
class Comparison:
    """The errors of one kernel's outputs on one shape, and whether they pass."""

    error: float
    """||out - reference|| / ||reference||, or NaN."""
    lse_error: float
    """Largest |lse - reference|; rows without a key must agree in being -inf."""
    workload: Workload
    """The shape that was compared."""
    limit: float | None = None
    """The largest `error` that passes; None stands for the tolerance of the workload's dtype."""
    repeatable: bool = True
    """Whether a second launch wrote the same bits. If not, the kernel has a race condition."""

    @property
    def passed(self) -> bool:
        """Whether both errors are within their limits."""
        return self.error <= self._limit and self.lse_error <= self._lse_limit

    @property
    def _limit(self) -> float:
        return TOLERANCE[self.workload.dtype] if self.limit is None else self.limit

    @property
    def _lse_limit(self) -> float:
        return E4M3_LSE_TOLERANCE if self.workload.dtype == "e4m3" else LSE_TOLERANCE

    @property
    def reason(self) -> str:
        """Why the comparison failed, in one sentence: the reason of a trial that is `wrong`."""
        if not self.repeatable:
            return f"two launches on the same inputs differ on {self.workload}: a race condition"
        return (
            f"error {self.error:.2e} (limit {self._limit:.0e}), logsumexp off by "
            f"{self.lse_error:.2e} (limit {self._lse_limit:.0e}) on {self.workload}"
        )


def ragged(workload: Workload, config: Config) -> Workload:
    """A small workload of the same kind with lengths that no tile divides, and two KV heads.

    seqlen_k exceeds seqlen_q, so that bottom-right and top-left causal masks differ. A window ends
    inside blocks, and the last rows do not see all keys. A packed workload has four sequences.
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
        batch=4 if workload.varlen else 1,
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
    import torch

    from tunefa.measure import reference

    _, _, _, out, lse, *_ = made
    right, right_lse = reference.attention(inputs(workload, made, scale), dtype)
    difference = (out.to(dtype) - right).norm() / right.norm().clamp_min(1e-30)
    empty = torch.isneginf(right_lse)
    off = (lse.to(dtype) - right_lse).abs().masked_fill(empty, 0.0)
    if bool((torch.isneginf(lse) != empty).any()):
        off = off + float("inf")
    return Comparison(float(difference), float(off.max()), workload)


def inputs(workload: Workload, made: tuple[Any, ...], scale: float) -> AttentionInputs:
    """The inputs of the reference, from tensors that `tensors` made for the workload."""
    from tunefa.measure.attention_inputs import AttentionInputs

    q, k, v, _, _, *more = made
    mask = workload.window_left, workload.window_right, softcap(workload)
    extra: dict[str, Any] = {"cu_seqlens": tuple(more)} if workload.varlen else {"descales": more}
    return AttentionInputs(q, k, v, workload.causal, scale, *mask, **extra)


class Gate:
    """The check that a kernel must pass on the device before it is timed.

    Its error must be within twice that of PyTorch's scaled_dot_product_attention on such inputs, or
    within TOLERANCE where PyTorch has no such attention; and a second launch must write the same
    bits.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._limits: dict[Workload, float] = {}

    def compare(
        self, launch: Callable[[], None], shape: Workload, made: tuple[Any, ...]
    ) -> Comparison:
        """Launches twice on `made`, fresh tensors of that shape, and compares the outputs."""
        import torch

        launch()
        outputs = made[3:5]
        first = [written.clone() for written in outputs]
        for written in outputs:
            written.fill_(float("nan"))
        launch()
        same = all(
            bool(((a == b) | (a.isnan() & b.isnan())).all())
            for a, b in zip(first, outputs, strict=True)
        )
        dtype = torch.float64 if shape.dtype == "fp32" else torch.float32
        found = compare(shape, made, shape.head_dim**-0.5, dtype)
        return replace(found, limit=self.limit(shape), repeatable=same)

    def limit(self, shape: Workload) -> float:
        """The largest relative error that passes on that shape; it is measured once.

        PyTorch has no soft-cap and no e4m3: the limit is then the dtype's tolerance.
        """
        import torch

        if shape.softcap or shape.dtype == "e4m3":
            return TOLERANCE[shape.dtype]
        if shape not in self._limits:
            from tunefa.measure import sdpa

            made = tensors(shape, self._device)
            sdpa.write(inputs(shape, made, shape.head_dim**-0.5), made[3])
            dtype = torch.float64 if shape.dtype == "fp32" else torch.float32
            peer = compare(shape, made, shape.head_dim**-0.5, dtype).error
            self._limits[shape] = max(2.0 * peer, ROUNDING[shape.dtype])
        return self._limits[shape]


def in_interpreter(case: Case, config: Config) -> Comparison:
    """Runs the config in its language's interpreter, in a process of its own, against fp64.

    bf16 is checked as fp16: Triton's interpreter multiplies bf16 matrices as raw 16-bit integers,
    and only the rounding of P and out depends on which of the two dtypes a kernel has. Raises the
    exception that the kernel raised there.
    """
    shape = ragged(case.workload, config)
    if shape.dtype == "bf16":
        shape = replace(shape, dtype="fp16")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_interpreting) as process:
        return process.submit(
            _interpret, replace(case, workload=shape).names, dict(config)
        ).result()


def _interpreting() -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is imported, so before that


def _interpret(names: tuple[str, str, str], config: Config) -> Comparison:
    import torch

    case = Case.from_names(*names)
    made = tensors(case.workload, "cpu")
    scale = case.workload.head_dim**-0.5
    languages.load(case.kernel.language).interpret(LaunchSpec(case, config, scale), made)
    return compare(case.workload, made, scale, torch.float64)
