"""tunefa import: records come back, and a broken file adds nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.broken_documents import BROKEN
from tests.support.sample_records import measured
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
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
    said = run("import", "torn.yaml", code=1).stderr
    assert "Error: torn.yaml:1: the file was cut short or changed since tunefa wrote it" in said
    Path("torn.yaml").write_text(whole[whole.index("\n") + 1 : whole.index("  objective")])
    said = run("import", "torn.yaml", code=1).stderr
    assert "Error: torn.yaml:3: record 1: key 'objective'" in said


def test_a_config_that_no_rule_allows_is_left_out_with_the_rule(run: Run) -> None:
    kernel = kernels.load("attention_fwd_triton")
    fits = kernel.default(measured().workload, archs.load("sm90"))
    here = {**measured().provenance, "source_hash": kernel.source_hash}
    of_another_version = measured("q2048")
    unknown = measured(kernel="of_another_tunefa")
    good = [measured(config=fits, provenance=here), of_another_version, unknown]
    bad = {
        "BLOCK_M=100 is not in the space": measured(
            config={**fits, "BLOCK_M": 100}, provenance=here
        ),
        "the space refuses its config": measured(
            config={**fits, "BLOCK_M": 256, "BLOCK_N": 256, "num_stages": 5}
        ),
        "sm80 has no e4m3": measured("fwd_q4096_e4m3", arch="sm80", config=fits),
    }
    for says, record in bad.items():
        store.write(Path("bad.yaml"), [record])
        said = run("import", "bad.yaml", code=1).stderr
        assert said.startswith("Error: no record was added: bad.yaml: attention_fwd_triton for ")
        assert says in said and len(said.splitlines()) == 1
    store.write(Path("mixed.yaml"), [*good, *bad.values()])
    result = run("import", "mixed.yaml")
    assert "mixed.yaml: 3 records, 3 of them new" in result.stdout
    assert result.stderr.count("Left out: mixed.yaml: attention_fwd_triton for ") == 3
    kept = store.Store([store.user_root()]).records()
    assert len(kept) == 3 and all(record in kept for record in good)
    (row,) = json.loads(run("import", "mixed.yaml", "--json").stdout)["files"]
    assert (row["records"], row["new"], len(row["refused"])) == (3, 0, 3)
