"""Casts the inputs of attention under `torch.autocast`, as scaled_dot_product_attention does."""

from __future__ import annotations

import torch
from torch import Tensor

from tunefa.runtime.call import Tensors

_DEVICES = tuple(name for name in ("cpu", "cuda") if torch.amp.is_autocast_available(name))
"""The devices that have autocast. They are looked up once, as torch.compile cannot trace this."""
_CAST = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that autocast changes. PyTorch leaves fp64 as it is, and e4m3 has its descales."""


def cast(tensors: Tensors) -> Tensors:
    """Returns q, k and v in the dtype of autocast where it is on for q's device. Anything else, and
    what is no tensor at all, is returned as it is."""
    q, k, v = tensors[:3]
    if not isinstance(q, Tensor):
        return tensors
    device = q.device.type
    if device not in _DEVICES or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    cast_q, cast_k, cast_v = (
        x.to(dtype) if isinstance(x, Tensor) and x.dtype in _CAST else x for x in (q, k, v)
    )
    return tensors._replace(q=cast_q, k=cast_k, v=cast_v)
