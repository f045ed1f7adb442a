"""tunefa/measure/square_tiles.py, `tunefa bench tiles`: the published formula and the compiler."""

from __future__ import annotations

import pytest

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, CompileError
from tunefa.measure import square_tiles
from tunefa.spec import kernel as kernels
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
