"""Fixtures of the tests of compilers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ascend_compiler import THERE
from tests.support.ascend_tiles import SOURCE
from tunefa.compile.ascend import toolchain
from tunefa.spec.kernel import Kernel


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The attention kernel for NPUs of tests/support, with the user's toolchain."""
    monkeypatch.setattr(toolchain, "folder", lambda: THERE)
    space: Any = SimpleNamespace(language="ascend", shared_memory_exprs=(), define={})
    return Kernel("attention", SOURCE, space)
