"""The Python in docs/integrations.md runs, on the CPU where it says CUDA."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tunefa
from tests.support.tree import TREE
from tunefa.integrations import flex

PAGE = TREE / "docs" / "integrations.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("code", SNIPPETS, ids=lambda code: code.splitlines()[0])
def test_snippets_run(code: str) -> None:
    needs = re.findall(r"^(?:import|from) (transformers|diffusers|megatron)\b", code, re.M)
    for name in needs:
        pytest.importorskip(name, reason=f"{name} is not installed")
    names: dict[str, Any] = {}
    try:
        exec(code.replace('device="cuda"', 'device="cpu"').replace("4096", "64"), names)
    finally:
        tunefa.deactivate()
        flex.use_defaults()
    shapes = [x.shape for x in names.values() if isinstance(x, torch.Tensor)]
    assert (shapes or names.keys() & {"count", "spec"}) and all(
        x.isfinite().all() for x in names.values() if isinstance(x, torch.Tensor)
    )


def test_there_are_snippets() -> None:
    assert SNIPPETS
