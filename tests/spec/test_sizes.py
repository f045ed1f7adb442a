"""tunefa/spec/sizes.py: sizes as users write them."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.sizes import bad_size, parse_size


@pytest.mark.parametrize(("text", "size"), [("8192", 8192), ("8k", 8192), ("8K", 8192), ("1", 1)])
def test_parse_size(text: str, size: int) -> None:
    assert parse_size(text, "--seqlen") == size


BAD_SIZES = ["0", "-1", "8k1", "", "k", "0k", "08", "1e3", "8.0", "8_192", " 8", "8kk", "8m", "٣"]


@pytest.mark.parametrize("text", [*BAD_SIZES, "9" * 5000])
def test_parse_size_refuses_the_rest(text: str) -> None:
    with pytest.raises(TunefaError) as caught:
        parse_size(text, "--seqlen")
    assert str(caught.value) == (
        f"--seqlen is {text!r}: give a whole number from 1, such as 8192 or 8k (8192)"
    )


def test_the_least_size_is_named() -> None:
    assert "give a whole number from 0" in str(bad_size("window_left", -1, 0))
