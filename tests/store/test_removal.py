"""tunefa/store/removal.py: records leave their files, and files without records go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sample_records import measured, predicted
from tunefa.errors import TunefaError
from tunefa.store import removal
from tunefa.store import results as store
from tunefa.store.removal import Stored


def test_a_file_keeps_its_other_records_and_goes_with_the_last(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    store.write(path, [measured(), predicted("q8192")])
    removal.remove([Stored(path, measured()), Stored(path, measured("q512"))])
    assert store.read(path) == [predicted("q8192")]
    removal.remove([Stored(path, predicted("q8192"))])
    assert not path.exists()


def test_a_file_that_changed_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    store.write(path, [measured()])
    path.write_text(path.read_text().replace("412.5", "400.0"))
    before = path.read_bytes()
    with pytest.raises(TunefaError, match="was cut short or changed"):
        removal.remove([Stored(path, measured())])
    assert path.read_bytes() == before
