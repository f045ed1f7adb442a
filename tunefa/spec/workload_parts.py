"""The parts of a workload's text, such as those of `b4_h32_q4096_d64_bf16_causal`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tunefa.errors import unknown
from tunefa.spec import dtype_names, matmul
from tunefa.spec.sizes import parse_size

OPS = ("fwd", "bwd", "decode", "prefill")
"""Attention, its gradients, and attention over a cache of keys and values: of few queries, and of
packed ones over pages."""
CACHE_OPS = OPS[2:]
"""The ops over a cache."""
TRAINING_OPS = OPS[:2]
"""The ops of a training step."""
DTYPES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "e4m3": 1}
"""Bytes of one element of q, k and v. The output has the same dtype, except bf16 for e4m3."""
ACCURACIES = ("standard", "fast")
"""From the most exact on. `standard`: what rounding explains; `fast`: errors 8 times as large."""

MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 256
MAX_MLA_DIMS: Mapping[str, int] = {"head_dim": 576, "head_dim_v": 512}
"""The largest head dimensions of multi-head latent attention, those of DeepSeek-V2 and V3: a latent
of 512 elements, and 64 more that are rotated."""
ROPE_DIM = 64
"""The rotated elements of a key of multi-head latent attention, if head_dim_v is not given."""
SIZES = {
    "b": "batch",
    "h": "heads",
    "kv": "heads_kv",
    "q": "seqlen_q",
    "k": "seqlen_k",
    "d": "head_dim",
    "dv": "head_dim_v",
    "w": "window_left",
    "a": "window_right",
    "page": "page_size",
}
SIDES = ("window_left", "window_right")
MASKS = {"causal": True, "full": False}
FLAGS = (
    *("softcap", "sinks", "e4m3cache", "mla", "prefix", "varlen"),
    *("deterministic", "batchvariant"),
)
_PART = re.compile(r"([a-z]+)(-?[0-9].*)")


def parse_part(part: str) -> tuple[str, Any]:
    """Returns the field that one part of a workload's text sets, and its value.

    Raises TunefaError for a part that is not known, or has a bad size.
    """
    if part in OPS:
        return "op", part
    if (dtype := dtype_names.canonical(part)) in DTYPES:
        return "dtype", dtype
    if part in MASKS:
        return "causal", MASKS[part]
    if part in FLAGS:
        return part, True
    if part in ACCURACIES:
        return "accuracy", part
    match = _PART.fullmatch(part)
    if match and match[1] in SIZES:
        name = SIZES[match[1]]
        size = parse_size(match[2], _shown(name))
        return name, size - 1 if name == "window_left" else size
    sizes = (f"{key}<{_shown(name)}>" for key, name in SIZES.items())
    raise unknown("part", part, [*OPS, *sizes, *DTYPES, *MASKS, *FLAGS, *ACCURACIES, matmul.OP])


def _shown(name: str) -> str:
    """Returns the name of a size in messages. In text, a window includes the diagonal."""
    return "window" if name == "window_left" else name
