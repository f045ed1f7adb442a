"""flash-attn's private functions, which Diffusers looks for when it loads flash-attn from the hub.

Diffusers 0.42.1 calls them for context parallelism only, which tunefa has not: they raise an error.
"""

from __future__ import annotations

from typing import Any, NoReturn

from tunefa.errors import TunefaError


def _flash_attn_forward(*_: Any, **__: Any) -> NoReturn:
    raise TunefaError(
        "context parallelism calls flash-attn's private functions, and tunefa has none of them: "
        "choose another attention backend for it"
    )


_flash_attn_backward = _flash_attn_varlen_forward = _flash_attn_varlen_backward = (
    _flash_attn_forward
)
