"""tunefa/cli/option_values.py: sizes and dtypes as users write them."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import measured
from tunefa.store import results as store


@pytest.mark.parametrize(("written", "found"), [("bfloat16", 1), ("float16", 0), ("fp8", 0)])
def test_lists_know_pytorchs_names(run: Run, written: str, found: int) -> None:
    store.default_store().add(measured(kernel="mine"))
    shown = json.loads(run("show", "--kernel", "mine", "--dtype", written, "--json").stdout)
    assert len(shown["records"]) == found


def test_a_dtype_that_nobody_has(run: Run) -> None:
    error = run("show", "--dtype", "flaot16", code=1).stderr
    assert "Error: unknown dtype 'flaot16': did you mean float16?" in error
    assert "known: bf16, fp16, fp32, e4m3, bfloat16" in error
