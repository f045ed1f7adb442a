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
"""Twice to three times what rounding alone makes: P and the output are rounded to the dtype, whose
unit is 2^-9 (bf16: 2e-3), 2^-12 (fp16: 2.4e-4) or 2^-24, where summation order dominates. With
e4m3, P is off by up to 2^-4 of itself, 2.6e-2 in the root mean square over mantissas; V's signs
being random, so is the output."""
ROUNDING = {"bf16": 2e-3, "fp16": 2.5e-4, "fp32": 2e-6}
"""What no kernel can be asked to stay below: half a unit of the dtype, for fp32 the 2^-22 of three
tf32 products with some sums."""
LSE_TOLERANCE = 1e-3
"""Largest absolute error of logsumexp, a sum in fp32 whatever the dtype, but for e4m3."""
E4M3_LSE_TOLERANCE = 1e-2
"""The same of e4m3, whose products Hopper adds with about 14 bits (DeepSeek-V3, arXiv:2412.19437,
section 3.5.2): of scores around 32, before the scale, a few 2^-9 are lost."""
SOFTCAP = 1.5
"""Bound of soft-capped scores here. It bites, for scores of normal inputs have deviation 1, and the
hardware's tanh, off by up to 2^-11 of it, stays within LSE_TOLERANCE."""
_MASKED_ROWS = 1024
"""Query rows that PyTorch is given at once where it needs a mask."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison."""

    error: float
    """||out - reference|| / ||reference||, or NaN."""
    lse_error: float
    """Largest |lse - reference|; rows without a key must agree in being -inf."""
    workload: Workload
    """The shape that was compared."""
    limit: float | None = None
    """Largest `error` that passes; None: the tolerance of the workload's dtype."""
    repeatable: bool = True
    """Whether a second launch on the same inputs wrote the same bits: if not, it is a race."""

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
        """One sentence, for a trial that is `wrong`."""
        if not self.repeatable:
            return f"two launches on the same inputs differ on {self.workload}: a race"
        return (
            f"error {self.error:.2e} (limit {self._limit:.0e}), logsumexp off by "
            f"{self.lse_error:.2e} (limit {self._lse_limit:.0e}) on {self.workload}"
        )


def ragged(workload: Workload, config: Config) -> Workload:
    """A small workload of the same kind whose lengths divide no tile: two KV heads, ragged tails.

    seqlen_k exceeds seqlen_q, so that bottom-right and top-left causal masks differ. A window ends
    inside of blocks, and is short of the last rows' keys by some. Packed sequences are four.
    Kernels with warpgroups have tiles of 64 rows of each (PTX ISA, wgmma: M is 64). Of e4m3 there
    are keys enough for sums that begin anew every 512 (attention_fwd_cuda_sm90) to do so twice.
    """
    rows = 64 * int(config.get("WARPGROUPS", 1))
    block_m, block_n = int(config.get("BLOCK_M", rows)), int(config.get("BLOCK_N", 64))
    seqlen_q = block_m + block_m // 2 + 1
    beyond = block_n + block_n // 2 + 1  # of a block
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
    """What its scores are capped at where it is checked or timed."""
    return SOFTCAP if workload.softcap else None


def tensors(workload: Workload, device: str, seed: int | None = None) -> tuple[Any, ...]:
    """Fresh (q, k, v, out, lse) on `device`: normal inputs, outputs full of NaN.

    Shapes as a kernel's `arguments` takes them, (batch, heads, seqlen, head_dim), stored BSHD. Of a
    `varlen` workload (rows, heads, head_dim), and cu_seqlens_q and cu_seqlens_k at the end. For
    e4m3 the descales of q, k and v come there, (batch, heads_kv): uniform between 0.5 and 1.5.
    """
    import torch

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    # Nothing but a copy makes a tensor of 8 bits; what leaves as such would be too coarse to use.
    dtype = dtypes.get(workload.dtype, torch.bfloat16)
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    lengths = workload.lengths
    rows, keys = (sum(each) for each in zip(*lengths, strict=True))

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
        cu_seqlens = [
            torch.tensor([0, *each], device=device).cumsum(0).int()
            for each in zip(*lengths, strict=True)
        ]
        return *made, nan((workload.heads, rows), torch.float32), *cu_seqlens
    descales = []
    if workload.dtype == "e4m3":
        of_heads = (3, workload.batch, workload.heads_kv)
        descales = list(0.5 + torch.rand(of_heads, generator=generator, device=device))
    lse = nan((workload.batch, workload.heads, workload.seqlen_q), torch.float32)
    return *(each.transpose(1, 2) for each in made), lse, *descales


def compare(workload: Workload, made: tuple[Any, ...], scale: float, dtype: Any) -> Verdict:
    """Judges outputs that a kernel wrote into `made`; the reference is computed in `dtype`."""
    import torch

    from tunefa.measure import reference

    _, _, _, out, lse, *_ = made
    right, right_lse = reference.attention(inputs(workload, made, scale), dtype)
    difference = (out.to(dtype) - right).norm() / right.norm().clamp_min(1e-30)
    empty = torch.isneginf(right_lse)
    off = (lse.to(dtype) - right_lse).abs().masked_fill(empty, 0.0)
    if bool((torch.isneginf(lse) != empty).any()):
        off = off + float("inf")
    return Verdict(float(difference), float(off.max()), workload)


def inputs(workload: Workload, made: tuple[Any, ...], scale: float) -> AttentionInputs:
    """What the reference computes of tensors that `tensors` made for the workload."""
    from tunefa.measure.attention_inputs import AttentionInputs

    q, k, v, _, _, *more = made
    mask = workload.window_left, workload.window_right, softcap(workload)
    extra: dict[str, Any] = {"cu_seqlens": tuple(more)} if workload.varlen else {"descales": more}
    return AttentionInputs(q, k, v, workload.causal, scale, *mask, **extra)


class Gate:
    """What a kernel must pass on the device before it is timed.

    Right twice over: within twice the error that PyTorch's scaled_dot_product_attention makes on
    such inputs (it takes no e4m3: within TOLERANCE), and the same bits from a second launch.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._limits: dict[Workload, float] = {}

    def verdict(
        self, launch: Callable[[], None], shape: Workload, made: tuple[Any, ...]
    ) -> Verdict:
        """Launches twice on `made`, fresh tensors of that shape, and compares."""
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
        """Largest relative error that passes on that shape; measured once.

        PyTorch has no soft-cap and no e4m3: there the tolerance is the limit.
        """
        import torch

        if shape.softcap or shape.dtype == "e4m3":
            return TOLERANCE[shape.dtype]
        if shape not in self._limits:
            made = tensors(shape, self._device)
            _run_sdpa(made, shape)
            dtype = torch.float64 if shape.dtype == "fp32" else torch.float32
            peer = compare(shape, made, shape.head_dim**-0.5, dtype).error
            self._limits[shape] = max(2.0 * peer, ROUNDING[shape.dtype])
        return self._limits[shape]


def _run_sdpa(made: tuple[Any, ...], shape: Workload) -> None:
    """Has PyTorch's attention write `out`, of packed sequences one after the other."""
    from tunefa.measure.attention_inputs import batch_of_one

    q, k, v, out, _ = made[:5]
    if not shape.varlen:
        out.copy_(_sdpa(q, k, v, shape))
        return
    for rows, _, one in inputs(shape, made, shape.head_dim**-0.5).sequences():
        seqlen_q, seqlen_k = one.q.shape[2], one.k.shape[2]
        alone = replace(shape, batch=1, seqlen_q=seqlen_q, seqlen_k=seqlen_k, varlen=False)
        batch_of_one(out[rows]).copy_(_sdpa(one.q, one.k, one.v, alone))


def _sdpa(q: Any, k: Any, v: Any, shape: Workload) -> Any:
    """PyTorch's attention; its own causal mask is top-left, so only square ones go by flag.

    Few of its backends take a mask beside grouped heads, and the one that is left writes out all
    scores: what needs a mask goes in blocks of rows, each with the keys that any of them sees.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    grouped, (left, right) = shape.group > 1, shape.band
    square = shape.causal and shape.seqlen_q == shape.seqlen_k
    if left is None and (right is None or square):
        return scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=grouped)
    outs = []
    for start in range(0, shape.seqlen_q, _MASKED_ROWS):
        rows = q[:, :, start : start + _MASKED_ROWS]
        diagonal = start + shape.seqlen_k - shape.seqlen_q
        first = 0 if left is None else max(0, diagonal - left)
        end = shape.seqlen_k
        if right is not None:
            end = min(end, max(first + 1, diagonal + right + rows.shape[2]))
        keys = slice(first, end)
        mask = torch.ones(rows.shape[2], end - first, dtype=torch.bool, device=q.device)
        if right is not None:
            mask = mask.tril(diagonal + right - first)
        if left is not None:
            mask = mask.triu(diagonal - left - first)
        outs.append(
            scaled_dot_product_attention(
                rows, k[:, :, keys], v[:, :, keys], attn_mask=mask, enable_gqa=grouped
            )
        )
    return torch.cat(outs, dim=2)


def in_interpreter(case: Case, config: Config) -> Verdict:
    """Runs the config in its language's interpreter, in a process of its own, against fp64.

    bf16 is checked as fp16: Triton's interpreter multiplies bf16 matrices as raw 16-bit integers,
    and nothing in a kernel but the rounding of P and out depends on which of the two it is. Raises
    whatever the kernel raised there.
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


def _interpret(names: tuple[str, str, str], config: Config) -> Verdict:
    import torch

    case = Case.from_names(*names)
    made = tensors(case.workload, "cpu")
    scale = case.workload.head_dim**-0.5
    languages.load(case.kernel.language).interpret(LaunchSpec(case, config, scale), made)
    return compare(case.workload, made, scale, torch.float64)
