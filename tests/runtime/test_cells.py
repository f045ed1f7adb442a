"""tunefa/runtime/cells.py: what is remembered for lengths nearby."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunefa.runtime import cells
from tunefa.runtime.cells import Cells, Lengths
from tunefa.store.lookup import Choice


def chooser(block_n: Callable[[Lengths], int]) -> tuple[Cells, list[Lengths]]:
    """Cells of choices with this BLOCK_N, and the lengths that were asked for."""
    asked: list[Lengths] = []

    def choose(lengths: Lengths) -> Choice:
        asked.append(lengths)
        return Choice("kernel", {"BLOCK_N": block_n(lengths)}, "default", None)

    return Cells(choose), asked


def test_a_growing_length_is_chosen_for_twice_in_sixteen() -> None:
    """At the begin of a cell and at its end."""
    made, asked = chooser(lambda _: 64)
    for keys in range(161, 177):
        assert made.choose(Lengths(2, 1, keys)).config == {"BLOCK_N": 64}
        assert made.find(Lengths(2, 1, keys)) is not None
    assert asked == [Lengths(2, 1, keys) for keys in (161, 176)]
    assert made.find(Lengths(2, 1, 177)) is None and made.find(Lengths(3, 1, 170)) is None
    for keys in range(177, 225):  # once in each further cell
        made.choose(Lengths(2, 1, keys))
    assert asked[2:] == [Lengths(2, 1, keys) for keys in (192, 208, 224)]


def test_where_the_next_cell_gets_another_config_it_begins_anew() -> None:
    made, asked = chooser(lambda lengths: 64 if lengths.seqlen_k < 185 else 128)
    for keys in range(161, 209):
        expected = {"BLOCK_N": 64 if keys < 185 else 128}
        assert made.choose(Lengths(1, 1, keys)).config == expected
    assert len(asked) == 2 + 17 + 1 + 1  # the second cell is not sure, and the third one is


def test_a_step_that_is_too_long_begins_anew() -> None:
    made, asked = chooser(lambda _: 64)
    for keys in (100, 112, 129, 200):
        made.choose(Lengths(1, 1, keys))
    assert asked == [Lengths(1, 1, keys) for keys in (100, 112, 129, 200)]


def test_both_lengths_may_shrink() -> None:
    made, asked = chooser(lambda _: 64)
    for length in range(176, 160, -1):
        made.choose(Lengths(1, length, length + 16))
    assert asked == [Lengths(1, 176, 192), Lengths(1, 161, 177)]


def test_short_lengths_and_batches_are_apart() -> None:
    made, asked = chooser(lambda _: 64)
    for lengths in ((1, 5, 33), (1, 6, 33), (1, 5, 34), (2, 5, 33), (1, 5, 33)):
        made.choose(Lengths(*lengths))
    assert len(asked) == 4


def test_a_cell_with_two_configs_is_not_sure() -> None:
    """Each of its lengths is asked for, and none is taken for another."""
    made, asked = chooser(lambda lengths: 64 if lengths.seqlen_k < 170 else 128)
    for keys in (*range(161, 177), 165):
        expected = {"BLOCK_N": 64 if keys < 170 else 128}
        assert made.choose(Lengths(1, 1, keys)).config == expected
    assert len(asked) == 18  # and once the end


def test_cells_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MAX_CELLS", 4)
    made, _ = chooser(lambda _: 64)
    for keys in range(100, 2000):
        made.choose(Lengths(1, 1, keys))
    assert len(made) == 4
