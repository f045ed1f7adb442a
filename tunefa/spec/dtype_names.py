"""The names that PyTorch, NumPy and papers have for tunefa's dtypes."""

from __future__ import annotations

from collections.abc import Mapping

OTHER_NAMES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8": "e4m3",
    "float8_e4m3fn": "e4m3",
}
"""`fp8` is e4m3: FlashAttention-3 has no other 8-bit dtype, and neither has tunefa."""


def canonical(name: str) -> str:
    """Returns tunefa's name of the dtype that is also called `name`; `name` itself if none is."""
    return OTHER_NAMES.get(name.lower().removeprefix("torch."), name)
