"""tunefa/measure/peers/tileops.py: what is asked of it. Its calls need a GPU."""

from __future__ import annotations

import pytest

from tunefa.measure import peers
from tunefa.measure.peer import Unserved
from tunefa.spec.workload import Workload


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("q64_fp32", "it has no fp32"),
        ("q64_d64_dv32", "its heads of Q and of V must be equally wide"),
    ],
)
def test_what_is_not_served_is_said_before_anything_is_imported(text: str, why: str) -> None:
    with pytest.raises(Unserved, match=why):
        peers.load("tileops").make(Workload.parse(text), ())


@pytest.mark.skipif(peers.load("tileops").why_absent() is None, reason="it is installed")
def test_where_it_is_not_installed_it_is_said() -> None:
    assert str(peers.load("tileops").why_absent()).endswith(": pip install tileops")
