"""Fixtures for the tests of integrations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support import flash_stand_ins


@pytest.fixture
def pytorch_calls() -> Iterator[list[str]]:
    """The operators of PyTorch that are called, which have stand-ins on the CPU."""
    with flash_stand_ins.registered() as calls:
        yield calls


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
