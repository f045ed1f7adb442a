"""Whether a kernel computes attention: against a reference of higher precision, on awkward shapes.

The error is ||out - reference|| / ||reference||; NaN never passes. Outputs are filled with NaN
before the launch, so an element that is not written is an error too.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tunefa import kernel as kernels
from tunefa import languages, reference
from tunefa.kernel import Kernel
from tunefa.trial import Config
from tunefa.workload import Workload

TOLERANCE = {"bf16": 8e-3, "fp16": 1e-3, "fp32": 2e-5}
"""Twice to three times what rounding alone makes: P and the output are rounded to the dtype, whose
unit is 2^-9 (bf16: 2e-3), 2^-12 (fp16: 2.4e-4) or 2^-24, where summation order dominates."""
LSE_TOLERANCE = 1e-3
"""Largest absolute error of logsumexp, a sum in fp32 whatever the dtype."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison."""

    error: float
    """||out - reference|| / ||reference||, or NaN."""
    lse_error: float
    """Largest |lse - reference|; rows without a key must agree in being -inf."""
    workload: Workload
    """The shape that was compared."""

    @property
    def passed(self) -> bool:
        """Whether both errors are within the tolerance of the workload's dtype."""
        return self.error <= TOLERANCE[self.workload.dtype] and self.lse_error <= LSE_TOLERANCE

    @property
    def reason(self) -> str:
        """One sentence, for a trial that is `wrong`."""
        limit = TOLERANCE[self.workload.dtype]
        return (
            f"error {self.error:.2e} (limit {limit:.0e}), logsumexp off by {self.lse_error:.2e} "
            f"(limit {LSE_TOLERANCE:.0e}) on {self.workload}"
        )


def awkward(workload: Workload, config: Config) -> Workload:
    """A small workload of the same kind whose lengths divide no tile: two KV heads, ragged tails.

    seqlen_k exceeds seqlen_q, so that bottom-right and top-left causal masks differ.
    """
    block_m, block_n = int(config.get("BLOCK_M", 64)), int(config.get("BLOCK_N", 64))
    seqlen_q = block_m + block_m // 2 + 1
    return replace(
        workload,
        batch=1,
        heads=2 * workload.group,
        heads_kv=2,
        seqlen_q=seqlen_q,
        seqlen_k=max(seqlen_q, 2 * block_n) + 13,
    )


def tensors(workload: Workload, device: str, seed: int | None = None) -> tuple[Any, ...]:
    """Fresh (q, k, v, out, lse) on `device`: normal inputs, outputs full of NaN.

    Shapes as a kernel's `arguments` takes them, (batch, heads, seqlen, head_dim), stored BSHD.
    """
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[workload.dtype]
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)

    def normal(heads: int, seqlen: int, head_dim: int) -> Any:
        shape = (workload.batch, seqlen, heads, head_dim)
        made = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        return made.transpose(1, 2)

    q = normal(workload.heads, workload.seqlen_q, workload.head_dim)
    k = normal(workload.heads_kv, workload.seqlen_k, workload.head_dim)
    v = normal(workload.heads_kv, workload.seqlen_k, workload.head_dim_v)
    nan = float("nan")
    out_shape = (workload.batch, workload.seqlen_q, workload.heads, workload.head_dim_v)
    out = torch.full(out_shape, nan, device=device, dtype=dtype).transpose(1, 2)
    lse = torch.full(q.shape[:3], nan, device=device, dtype=torch.float32)
    return q, k, v, out, lse


def compare(workload: Workload, made: tuple[Any, ...], scale: float, dtype: Any) -> Verdict:
    """Judges outputs that a kernel wrote into `made`; the reference is computed in `dtype`."""
    import torch

    q, k, v, out, lse = made
    right, right_lse = reference.attention(q, k, v, workload.causal, scale, dtype=dtype)
    difference = (out.to(dtype) - right).norm() / right.norm().clamp_min(1e-30)
    empty = torch.isneginf(right_lse)
    off = (lse.to(dtype) - right_lse).abs().masked_fill(empty, 0.0)
    if bool((torch.isneginf(lse) != empty).any()):
        off = off + float("inf")
    return Verdict(float(difference), float(off.max()), workload)


def in_interpreter(kernel: Kernel, workload: Workload, config: Config) -> Verdict:
    """Runs the config in its language's interpreter, in a process of its own, against fp64.

    bf16 is checked as fp16: Triton's interpreter multiplies bf16 matrices as raw 16-bit integers,
    and nothing in a kernel but the rounding of P and out depends on which of the two it is. Raises
    whatever the kernel raised there.
    """
    shape = awkward(workload, config)
    if shape.dtype == "bf16":
        shape = replace(shape, dtype="fp16")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_interpreting) as process:
        return process.submit(_interpret, kernel.name, str(shape), dict(config)).result()


def _interpreting() -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is imported, so before that


def _interpret(kernel_name: str, workload_text: str, config: Config) -> Verdict:
    import torch

    kernel, workload = kernels.load(kernel_name), Workload.parse(workload_text)
    made = tensors(workload, "cpu")
    scale = workload.head_dim**-0.5
    language = languages.load(kernel.language)
    language.interpret(kernel, made, workload, config, scale)
    return compare(workload, made, scale, torch.float64)
