"""The arithmetic that `tunefa explain` prints comes to what occupancy and model say."""

from __future__ import annotations

from tests.support.explained_case import CONFIG, asked
from tunefa.cli.reports import explanation
from tunefa.spec.trial import Resources, Trial


def test_shared_memory_is_explained_as_promised() -> None:
    trial = Trial(CONFIG, "ok", resources=Resources(164864, 168, 0, 0))
    found = explanation.explain(asked("q8192", "sm90"), CONFIG, trial)
    assert found.occupancy_lines == {
        "threads": "256 threads / 32 = 8 warps; 64 warps per SM / 8 = 8 CTAs",
        "registers": (
            "168 per thread x 32, rounded to 5,376 per warp; 16,384 per partition / 5,376 = 3 "
            "warps; 3 x 4 partitions / 8 warps = 1 CTA"
        ),
        "smem": (
            "164,864 B + 1,024 B reserved, rounded to 165,888 B; 233,472 B per SM / 165,888 = 1 CTA"
        ),
        "blocks": "at most 32 CTAs per SM",
    }


def test_two_blocks_fit_where_the_tile_is_small_enough() -> None:
    trial = Trial(CONFIG, "ok", resources=Resources(48 * 1024 + 16384, 128, 0, 0))
    found = explanation.explain(asked("q8192_d64", "sm90"), CONFIG, trial)
    assert found.prediction.occupancy.blocks_per_sm == 2
    assert "rounded to 66,560 B; 233,472 B per SM / 66,560 = 3" in found.occupancy_lines["smem"]


def test_without_a_compiler_the_space_stands_in() -> None:
    case = asked("q8192", "sm90")
    found = explanation.explain(case, CONFIG, None)
    bounds = case.estimate(CONFIG)
    assert not found.compiled
    assert found.resources.smem_bytes == bounds["smem_bytes"]
    assert found.to_data()["resources_from"] == "lower bounds"
