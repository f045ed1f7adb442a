"""The private functions of flash-attn that Diffusers looks for."""

from __future__ import annotations

import pytest

import tunefa
from tunefa.integrations.compat import flash_attn_interface


@pytest.mark.parametrize("name", ["forward", "backward", "varlen_forward", "varlen_backward"])
def test_each_is_there_and_says_what_is_lacking(name: str) -> None:
    function = getattr(flash_attn_interface, f"_flash_attn_{name}")
    with pytest.raises(tunefa.TunefaError, match="context parallelism calls flash-attn's private"):
        function(1, 2, scale=3)
