"""tunefa/store/checksum.py: any change of a text shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunefa.store import checksum


@given(st.text(), st.text())
def test_other_texts_have_other_checksums(one: str, other: str) -> None:
    assert (checksum.of(one) == checksum.of(other)) == (one == other)
    assert len(checksum.of(one)) == 16
