"""Fixtures for the tests of integrations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support import flash_stand_ins


@pytest.fixture
def pytorch_calls() -> Iterator[list[str]]:
    """The operators of PyTorch that are called, which have stand-ins on the CPU."""
    with flash_stand_ins.registered() as calls:
        yield calls


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets PyTorch raise an error where Python overrides an operator twice, as 2.11 does."""
    library: Any = torch.library.Library
    inner = library.impl

    def impl(
        self: Any, name: Any, function: Any, key: str = "", *, allow_override: Any = False, **w: Any
    ) -> None:
        inner(self, name, function, key, allow_override=allow_override, **w)

    monkeypatch.setattr(library, "impl", impl)
