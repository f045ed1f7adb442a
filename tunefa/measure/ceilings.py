"""The ceilings of a device: the fastest matrix product and the fastest copy that PyTorch makes.

A share of a peak from a data sheet says little, as clocks fall under load. So the ceilings are
measured, in the same process and with the same clock as what is compared with them: cuBLAS's
product of square matrices of 8,192 and a copy of 1 GiB, interleaved, with a cold L2, medians.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import torch

from tunefa.measure.timing import HostStopwatch, Stopwatch

SIZE = {"cuda": 8192, "cpu": 512}
"""The rows and columns of the matrices by device."""
COPIED_BYTES = {"cuda": 2**30, "cpu": 2**26}
"""The bytes that are read, and written, by device."""
ROUNDS = 11
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Ceilings:
    """The rates that attention in a dtype cannot exceed by much."""

    matmul_tflops: float
    """TFLOP/s of a product of two large matrices in `dtype`, with sums in fp32; those of e4m3 are
    what the tensor cores add by themselves (`use_fast_accum`), as in kernels for attention."""
    copy_gb_per_s: float
    """Bytes read plus bytes written by a copy within the device's memory."""
    dtype: str
    """The dtype of the product: that which was asked for, or bf16 where PyTorch has no product in
    it."""


def measured(dtype: str, device: str = "cuda") -> Ceilings:
    """Measures the ceilings for a dtype of workloads, which takes about a second on a GPU.

    fp32 is in full precision, unless PyTorch's settings allow TF32.
    """
    size, stopwatch = SIZE[device], Stopwatch("eager") if device == "cuda" else HostStopwatch()
    product, made_in = _product(dtype, size, device)
    source = torch.empty(COPIED_BYTES[device], dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    calls = [product, lambda: target.copy_(source)]
    for call in calls:
        call()  # loads and allocates
    samples = [[us for us, _ in stopwatch.times_us(calls)] for _ in range(ROUNDS)]
    product_us, copy_us = (statistics.median(each) for each in zip(*samples, strict=True))
    return Ceilings(2e-6 * size**3 / product_us, 2e-3 * source.numel() / copy_us, made_in)


def _product(dtype: str, size: int, device: str) -> tuple[Any, str]:
    """Returns a call that multiplies two normal matrices, and the dtype of the matrices."""
    # A capture of a contestant that failed may have left PyTorch's own generator unusable.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator, device=device) for _ in range(2))
    if dtype == "e4m3":
        a, b = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=device)

        def scaled() -> Any:
            options: dict[str, Any] = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
            return torch._scaled_mm(a, b, one, one, **options)

        try:
            scaled()
            return scaled, dtype
        except (RuntimeError, NotImplementedError):  # tensor cores for e4m3 begin with sm89
            dtype = "bf16"
    a, b = left.to(_DTYPES[dtype]), right.to(_DTYPES[dtype])
    return (lambda: torch.mm(a, b)), dtype
