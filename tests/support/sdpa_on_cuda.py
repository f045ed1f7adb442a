"""Calls of PyTorch's scaled_dot_product_attention on a CUDA device, and what they launch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tunefa

CUDA: Any = torch.cuda  # parts of it have no types


def inputs(
    rows: int, keys: int, heads: int = 32, heads_kv: int = 8, head_dim: int = 128, batch: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as models have them, (batch, heads, rows, head_dim), of rows with all heads."""
    torch.manual_seed(0)

    def normal(rows: int, heads: int) -> Tensor:
        x = torch.randn(batch, rows, heads, head_dim, device="cuda", dtype=torch.bfloat16)
        return x.requires_grad_().transpose(1, 2)

    return normal(rows, heads), normal(keys, heads_kv), normal(keys, heads_kv)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = True, **named: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True, **named)


def step(function: Any, given: tuple[Tensor, ...], **named: Any) -> tuple[Tensor, ...]:
    """(out, dq, dk, dv) of one training step."""
    out = function(*given, **named)
    return out, *torch.autograd.grad(out.float().square().sum(), given)


def near(found: tuple[Tensor, ...], right: tuple[Tensor, ...], limit: float = 2e-2) -> None:
    for one, other in zip(found, right, strict=True):
        error = float((one.double() - other.double()).norm() / other.double().norm())
        assert error <= limit, error
        assert one.stride() == other.stride()


def kernels_of(work: Any) -> set[str]:
    """The names of the kernels that a function launches on the device."""
    from torch.profiler import ProfilerActivity, profile

    work()
    CUDA.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        work()
        CUDA.synchronize()
    # The host's calls of CUDA are events too, but not of the device.
    on_device = {e.name for e in seen.events() if e.device_type.name == "CUDA"}
    return {name for name in on_device if not name.startswith(("Memset", "Memcpy"))}


def poison_memory() -> None:
    """Lets the memory that is allocated next be full of NaN, as far as nothing is written to it."""
    CUDA.synchronize()
    CUDA.empty_cache()
    torch.full((2**30,), torch.nan, device="cuda", dtype=torch.bfloat16)


def choice() -> str:
    found = tunefa.last_choice()
    return "" if found is None else found.kernel
