"""tunefa/measure/peers/flashinfer.py: what is asked of it. Its calls need a GPU."""

from __future__ import annotations

import pytest

from tunefa.measure import peers
from tunefa.measure.peer import Unserved
from tunefa.spec.workload import Workload


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("q64_fp32", "it has no fp32"),
        ("q64_a9", "its windows have no keys beyond the diagonal"),
        ("q64_e4m3", "it has no e4m3"),
    ],
)
def test_what_is_not_served_is_said_before_anything_is_imported(text: str, why: str) -> None:
    with pytest.raises(Unserved, match=why):
        peers.load("flashinfer").make(Workload.parse(text), ())


@pytest.mark.skipif(peers.load("flashinfer").why_absent() is None, reason="it is installed")
def test_where_it_is_not_installed_it_is_said() -> None:
    assert str(peers.load("flashinfer").why_absent()).endswith(": pip install flashinfer-python")
