"""tunefa bench: what cannot be compared, and the whole comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.ascend_compiler import THERE, needs_compiler
from tunefa.cli import main
from tunefa.compile.ascend import toolchain

PUBLISHED = [40_960, 81_920, 163_840, 327_680]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "name one, such as --arch ascend910b3"),
        (["--arch", "sm90"], 1, "sm90 is not an NPU"),
        (["--arch", "ascend310p"], 1, "only formulas say"),
        (["--arch", "ascend910b3"], 1, "run 'tunefa ascend setup'"),
    ],
)
def test_what_cannot_be_compared_is_said(words: list[str], status: int, said: str) -> None:
    done = CliRunner().invoke(main, ["bench", "tiles", *words])
    assert done.exit_code == status and said in done.stderr


@needs_compiler
def test_with_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    toolchain.folder().parent.mkdir(parents=True, exist_ok=True)
    toolchain.folder().symlink_to(THERE)
    asked = ["bench", "tiles", "--arch", "ascend910b3"]
    found = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)["tiles"]
    assert [tile["fits"] for tile in found] == [True, True, False, False]
    assert [tile["formula_bytes"] for tile in found] == PUBLISHED
    assert (found[2]["l0c_bytes"], found[3]["l0c_bytes"]) == (262_144, 1_048_576)
    path = tmp_path / "tiles.png"
    done = CliRunner().invoke(main, [*asked, "--plot", str(path)], env={"COLUMNS": "120"})
    assert done.exit_code == 0 and path.is_file(), done.output
    assert "are half of what it gives" in done.stdout and "UB, L0C overflow" in done.stdout
