from __future__ import annotations

import pytest

from tunefa.errors import TunefaError, unknown


def test_unknown_names_the_value_the_nearest_and_the_known() -> None:
    error = unknown("arch", "sm9", ["sm80", "sm90"])
    assert str(error) == "unknown arch 'sm9': did you mean sm90? (known: sm80, sm90)"


def test_unknown_without_anything_near_still_lists_the_known() -> None:
    assert str(unknown("arch", "gfx942", ["sm80"])) == "unknown arch 'gfx942' (known: sm80)"


def test_unknown_with_nothing_known() -> None:
    assert str(unknown("kernel", "x", [])) == "unknown kernel 'x' (known: none)"


def test_nearest_is_found_whatever_the_case() -> None:
    assert "did you mean BLOCK_M?" in str(unknown("name", "block_m", iter(["BLOCK_M", "x"])))


def test_a_set_of_known_names_is_listed_in_order() -> None:
    assert "(known: a, b, c)" in str(unknown("key", "zzz", {"c", "a", "b"}))


def test_the_error_ends_the_process_with_status_1() -> None:
    with pytest.raises(TunefaError) as caught:
        raise unknown("arch", "sm9", ["sm90"])
    assert caught.value.exit_code == 1
