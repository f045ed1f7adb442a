"""Experiments are found in their folder."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.experiments import experiment as experiments


def test_they_are_found_by_their_names() -> None:
    assert {"scaling", "causal", "memory", "dtypes"} <= set(experiments.names())
    assert "document" not in experiments.names() and "run" not in experiments.names()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(TunefaError, match="scaling"):
        experiments.load("scalling")
