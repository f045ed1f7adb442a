"""tunefa import: records come back, and a broken file adds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.broken_documents import BROKEN
from tests.support.sample_records import measured
from tunefa.store import results as store
from tunefa.store.record import Record


def test_export_and_import_give_back_every_record(
    run: Run, filled: list[Record], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = run("export", "best.yaml").stdout
    assert "Wrote 3 records as yaml to best.yaml." in out
    assert "tunefa import best.yaml" in out
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "another"))
    assert "best.yaml: 3 records, 3 of them new" in run("import", "best.yaml").stdout
    assert "best.yaml: 3 records, 0 of them new" in run("import", "best.yaml").stdout
    known = store.default_store().records()
    assert all(record in known for record in filled)


@pytest.mark.parametrize("kind", BROKEN)
def test_import_of_a_broken_file_adds_nothing(run: Run, home: Path, kind: str) -> None:
    content, error = BROKEN[kind]
    store.write(Path("good.yaml"), [measured()])
    Path("bad.yaml").write_text(content)
    said = run("import", "good.yaml", "bad.yaml", code=1).stderr
    assert said.startswith("Error: bad.yaml:")
    assert error in said
    assert not (home / "results").exists()


def test_import_of_a_truncated_file_names_it(run: Run) -> None:
    store.write(Path("whole.yaml"), [measured()])
    whole = Path("whole.yaml").read_text()
    Path("torn.yaml").write_text(whole[: whole.index("  objective")])
    assert (
        "Error: torn.yaml:3: record 1: key 'objective'" in run("import", "torn.yaml", code=1).stderr
    )
