"""The page docs/chips.md: made from docs/chips.json, for every chip and head dimension."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from benchmarks import chips
from tests.support.tree import TREE
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

KEPT: dict[str, Any] = json.loads((TREE / chips.DATA).read_text(encoding="utf-8"))


def test_the_page_is_what_the_file_gives() -> None:
    assert (TREE / chips.PAGE).read_text(encoding="utf-8") == chips.page(KEPT), (
        "run python -m benchmarks.chips page"
    )


@pytest.mark.parametrize("chip", chips.CHIPS)
def test_every_chip_has_its_head_dimensions(chip: str) -> None:
    target = Target.named(chip)
    rows = KEPT[chip]["rows"]
    assert [row["workload"] for row in rows] == [
        str(Workload.parse(chips.workload(target, head_dim))) for head_dim in chips.HEAD_DIMS
    ]
    assert KEPT[chip]["arch"] == target.arch.name


def test_a_number_that_is_changed_changes_the_page() -> None:
    changed = copy.deepcopy(KEPT)
    changed["a100"]["rows"][0]["median_us"] = 77_777.0
    assert "| 77,777 |" in chips.page(changed)


def test_why_shared_memory_alone_does_not_say_it() -> None:
    page = chips.page(KEPT)
    four, eight = (row for row in KEPT["a100"]["example"])
    assert eight["blocks_by_limit"]["smem"] >= 2 and eight["blocks_per_sm"] == 1
    assert four["config"]["num_warps"] == 4
    assert "registers" in page and "so 1 run;" in page


def test_a_chip_without_a_kernel_says_so() -> None:
    changed = copy.deepcopy(KEPT)
    changed["orin"]["rows"] = []
    assert "No kernel serves these workloads." in chips.page(changed)
