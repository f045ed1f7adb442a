"""tunefa/store/results.py: of copies of one record in several roots, the earlier root's counts."""

from __future__ import annotations

from pathlib import Path

from tests.support.sample_records import CONFIG, dated, measured
from tunefa.store import results as store
from tunefa.store.results import Store


def test_a_copy_in_an_earlier_root_counts(tmp_path: Path) -> None:
    """A note in the provenance makes a copy, another config or date another record."""
    here = Store([tmp_path / "user", tmp_path / "shipped.yaml"])
    made = {**measured().provenance, "note": "not as shipped"}
    others = [measured(config={**CONFIG, "BLOCK_M": 64}), measured(provenance=dated("2026-01-01"))]
    here.add(noted := measured(provenance=made))
    store.write(tmp_path / "shipped.yaml", [measured(), *others])
    assert here.records() == [noted, *others]
