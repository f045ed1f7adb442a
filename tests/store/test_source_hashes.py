"""tunefa/store/source_hashes.py: a record of a past source holds while the machine code does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.sample_records import dated, measured
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.store import source_hashes


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table of this test's own."""
    path = tmp_path / "table.yaml"
    monkeypatch.setattr(source_hashes, "TABLE", path)
    source_hashes.read.cache_clear()
    yield path
    source_hashes.read.cache_clear()


def test_the_newest_of_the_same_code_is_found_through_all_between(table: Path) -> None:
    table.write_text('a_kernel:\n  "01": "02"\n  "02": "03"\nother:\n  "03": "04"\n')
    for past in ("01", "02", "03"):
        assert source_hashes.same_code("a_kernel", past) == "03"
    assert source_hashes.same_code("a_kernel", "99") == "99"
    assert source_hashes.same_code("a_third", "01") == "01"


def test_a_record_has_the_newest_hash(table: Path) -> None:
    table.write_text('attention_fwd_triton:\n  "0123abcd": "beef"\n')
    assert measured().source_hash == "beef"
    assert measured(provenance=dated("2026-01-01T00:00:00Z", source_hash="1")).source_hash == "1"


def test_an_empty_table_is_none_and_a_spoiled_one_is_told(table: Path) -> None:
    table.write_text("# nothing yet\n{}\n")
    assert source_hashes.read() == {}
    source_hashes.read.cache_clear()
    table.write_text("a: {}\na: {}\n")
    with pytest.raises(TunefaError, match=r"table\.yaml:2: "):
        source_hashes.read()


def ends(steps: Mapping[str, str]) -> set[str]:
    return set(steps.values()) - set(steps)


def test_the_table_that_ships_leads_to_one_hash_a_kernel_and_round_in_no_circle() -> None:
    table = source_hashes.read()
    assert table and set(table) <= set(kernels.names())
    for kernel, steps in table.items():
        for past in steps:
            way = [past]
            while way[-1] in steps:
                way.append(steps[way[-1]])
                assert way.count(way[-1]) == 1, f"{kernel}: {way} is a circle"
        assert len(ends(steps)) >= 1
