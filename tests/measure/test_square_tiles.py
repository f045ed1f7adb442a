"""tunefa/measure/square_tiles.py, `tunefa bench tiles`: the published formula and the compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.ascend_compiler import THERE, needs_compiler
from tunefa.cli import main
from tunefa.cli.reports import tiles as reports
from tunefa.compile import languages
from tunefa.compile.ascend import toolchain
from tunefa.compile.contract import Compiled, CompileError
from tunefa.measure import square_tiles
from tunefa.measure.square_tiles import Tile
from tunefa.spec import kernel as kernels
from tunefa.spec.arch_catalog import npu
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Resources
from tunefa.spec.workload import Workload

B3 = Target.named("ascend910b3")
WORKLOAD = Workload.parse("h32_kv8_q8192_d64_fp16_full")
CASE = Case(kernels.load("attention_fwd_ascend"), WORKLOAD, B3)
PUBLISHED = [40_960, 81_920, 163_840, 327_680]


def test_the_formula_is_as_published() -> None:
    assert [square_tiles.formula_bytes(tile, WORKLOAD) for tile in square_tiles.TILES] == PUBLISHED


def test_what_overflows_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    language = languages.load("ascend")

    def compile(case: Case, config: Config) -> Compiled:
        asked = Resources(ub_bytes=config["BLOCK_M"] * 1500, l1_bytes=1, l0c_bytes=1)
        if config["BLOCK_M"] > 128:
            raise CompileError("UB overflow", resources=asked)
        return Compiled(None, lambda: asked, 0.0)

    monkeypatch.setattr(language, "compile", compile)
    found = square_tiles.table(CASE)
    assert [tile.loops for tile in found] == [128, 64, 32, 16]
    assert [tile.fits for tile in found] == [True, True, False, False]
    assert [tile.modelled_us is None for tile in found] == [False, False, True, True]
    assert [tile.ub_bytes for tile in found] == [96_000, 192_000, 384_000, 768_000]
    # 128 blocks of queries by 32 heads on 20 cores: 205 tiles of 128 steps
    assert found[0].steps == 205 * 128


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    some = [Tile(64, 128, 40960, True, "", 53504, 65536, 32768, 1, 1.0),
            Tile(512, 16, 327680, False, "no", None, 655360, 99999999, 1, None)]  # fmt: skip
    path = tmp_path / "tiles.png"
    reports.plot(some, WORKLOAD, npu(B3.arch), path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "name one, as --arch ascend910b3"),
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
