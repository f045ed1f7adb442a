"""tunefa/cli/reports/removal.py: what will be removed is shown, and the question is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.support.sample_records import measured
from tunefa.cli import main
from tunefa.store import results as store
from tunefa.store.record import Record


def own() -> list[Record]:
    return store.Store([store.user_root()]).records()


@pytest.mark.parametrize(("answer", "left"), [("y\n", 2), ("n\n", 3), ("", 3)])
def test_it_asks_first(filled: list[Record], answer: str, left: int) -> None:
    result = CliRunner().invoke(main, ["rm", "-w", "q8192"], input=answer)
    assert result.exit_code == (0 if left == 2 else 1)
    assert "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal" in result.stdout
    assert "Remove 1 record? [y/N]" in result.stderr and len(own()) == left


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_every_record_and_file_is_named(home: object, columns: str) -> None:
    path = store.default_store().add(measured())
    environment = {"COLUMNS": columns}
    out = CliRunner().invoke(main, ["rm", "--last", "--dry-run"], env=environment).stdout
    assert "NVIDIA H200 (sm90)" in " ".join(out.split()) and "412.5" in out
    assert str(path) in out.splitlines(), "whole, so that it can be copied"
    assert out.splitlines()[-1] == "Would remove 1 record."
    assert all(len(line) <= int(columns) for line in out.splitlines() if line != str(path))
