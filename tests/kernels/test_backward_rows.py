"""The kernels that run before and after the Hopper backward, in Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.support import backward_rows
from tests.support.processes import interpreted
from tunefa.compile import languages


@pytest.mark.slow
def test_rows_and_gradients_are_right() -> None:
    """Heads behind rows, padded head dimensions, a row that sees no key, dlse and none."""
    if reason := languages.load("triton").why_no_interpreter():
        pytest.skip(reason)
    errors = interpreted("backward_rows")
    assert len(errors) == len(backward_rows.CASES)
    for each in errors:
        assert each["lse of no row"] == each["delta of no row"] == each["accumulator"] == 0
        assert each["lse"] < 1e-5 and each["delta"] < 1e-4 and each["dq"] < 1e-3, each
