"""tunefa/cli/cleaned.py: what acts on a terminal is replaced, everything else stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunefa.cli.cleaned import cleaned


def test_what_acts_on_a_terminal_is_replaced() -> None:
    assert cleaned("a\x1b[31mb\r\x00\x9b\u202e\ud800") == "a\ufffd[31mb" + 5 * "\ufffd"
    assert cleaned("tab\tline\n«é»漢🙂") == "tab\tline\n«é»漢🙂"


@given(st.text())
def test_it_keeps_the_length_and_can_be_written(text: str) -> None:
    safe = cleaned(text)
    assert len(safe) == len(text) and cleaned(safe) == safe
    assert safe.encode().decode() == safe
    assert all(char == "\ufffd" or char == before for char, before in zip(safe, text, strict=True))
