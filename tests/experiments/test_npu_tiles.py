"""Square tiles on NPUs: what cannot be compared, tables and plots, and the whole comparison."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.ascend_compiler import THERE, needs_compiler
from tests.support.pictures import drawn
from tunefa.cli import main
from tunefa.compile.ascend import toolchain
from tunefa.experiments.document import MODELLED, Document, Row
from tunefa.experiments.tiles import EXPERIMENT
from tunefa.measure.square_tiles import Tile

PUBLISHED = [40_960, 81_920, 163_840, 327_680]
WORKLOAD = "fwd_b1_h32_kv8_q8192_k8192_d64_fp16_full"


def document(ub_bytes: int = 53_504) -> Document:
    tiles = [
        Tile(64, 128, 40_960, True, "", ub_bytes, 65_536, 32_768, 10, 1.0),
        Tile(512, 16, 327_680, False, "too large", None, 655_360, 131_072, 1, None),
        Tile(256, 32, 163_840, False, "the compiler crashed", None, None, None, 1, None),
    ]
    sizes = {"ub_available_bytes": 196_608, "l1_available_bytes": 524_288}
    common: Row = {"workload": WORKLOAD, "chip": "Ascend910B3", "l0c_available_bytes": 131_072}
    rows = [{**common, **sizes, **tile.to_data()} for tile in tiles]
    return Document("tiles", MODELLED, "ascend910b3", "910B3", rows)


def test_the_table() -> None:
    (table,) = EXPERIMENT.tables(document())
    assert table.title == f"{WORKLOAD} on Ascend910B3"
    assert [row[-1] for row in table.rows] == ["fits", "L1 overflow", "the compiler crashed", ""]
    assert table.rows[0][2:4] == ["40,960", "53,504"] and table.rows[1][3] == "–"
    assert table.rows[3][3:6] == ["196,608", "524,288", "131,072"]
    assert "are half of what it gives" in table.remarks[-1]
    assert "2 bytes x 5 tensors x tile x 64 in the UB" in table.remarks[1]


def test_a_changed_number_changes_table_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (table,) = EXPERIMENT.tables(document(200_000))
    assert table.rows[0][3] == "200,000"
    first = drawn(EXPERIMENT, document(), tmp_path / "a.png")
    other = drawn(EXPERIMENT, document(200_000), tmp_path / "b.png")
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arch", "ascend310p"], "only formulas say"),
        (["--arch", "ascend910b3"], "run 'tunefa ascend setup'"),
    ],
)
def test_what_cannot_be_compared_is_said(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    done = CliRunner().invoke(main, ["bench", "tiles", *words])
    assert done.exit_code == 1 and said in done.stderr


@needs_compiler
def test_with_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    toolchain.folder().parent.mkdir(parents=True, exist_ok=True)
    toolchain.folder().symlink_to(THERE)
    asked = ["bench", "tiles", "--arch", "ascend910b3", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, asked, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert "are half of what it gives" in done.stdout and "UB, L0C overflow" in done.stdout
    assert (tmp_path / "out" / "tiles.png").is_file()
    found = json.loads((tmp_path / "out" / "tiles.json").read_text())["rows"]
    assert [tile["fits"] for tile in found] == [True, True, False, False]
    assert [tile["formula_bytes"] for tile in found] == PUBLISHED
    assert (found[2]["l0c_bytes"], found[3]["l0c_bytes"]) == (262_144, 1_048_576)
