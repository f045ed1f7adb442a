"""tunefa/cli/reports/tiles.py: the table of tiles, and its plot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefa.cli.reports import tiles as reports
from tunefa.measure.square_tiles import Tile
from tunefa.spec.arch_catalog import npu
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

B3 = Target.named("ascend910b3")

WORKLOAD = Workload.parse("h32_kv8_q8192_d64_fp16_full")


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    some = [Tile(64, 128, 40960, True, "", 53504, 65536, 32768, 1, 1.0),
            Tile(512, 16, 327680, False, "no", None, 655360, 99999999, 1, None)]  # fmt: skip
    path = tmp_path / "tiles.png"
    reports.plot(some, WORKLOAD, npu(B3.arch), path)
    assert path.read_bytes().startswith(b"\x89PNG")
