"""Profiles and counters on a device: kernels in tunefa's ranges, and bytes that make sense."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tunefa.errors import TunefaError
from tunefa.experiments import profiled, profiles, traffic
from tunefa.experiments.profiles import FIGURES
from tunefa.measure import counters
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
WORKLOAD = Workload.parse("b1_h8_q1024_d64_fp16_causal")
SCORES_BYTES = 8 * 1024 * 1024 * 2


@pytest.mark.parametrize("tool", ["torch", "proton"])
def test_kernels_are_in_the_range_of_their_contestant(tool: str, tmp_path: Path) -> None:
    made = profiles.profile(tool, WORKLOAD, ("tunefa", "operators"), tmp_path)
    assert all(path.is_file() for path in made.files)
    kernels = {
        name: [row["kernel"] for row in made.rows if row["contestant"] == name]
        for name in ("tunefa", "operators")
    }
    assert len(kernels["tunefa"]) == 1, kernels
    assert len(kernels["operators"]) >= 3, kernels
    assert all(row["time_us"] > 0 and row["count"] >= 1 for row in made.rows)


@pytest.fixture
def ncu() -> None:
    """Skips where there are no counters."""
    if shutil.which("ncu") is None:
        pytest.skip("there is no ncu")
    try:
        counters.read(profiled.command(WORKLOAD), [traffic.METRICS[0]])
    except TunefaError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("ncu")
def test_operators_move_their_scores_and_tunefa_does_not() -> None:
    found = {
        name: traffic.counted(counters.read(profiled.command(WORKLOAD, name), traffic.METRICS))
        for name in ("tunefa", "operators")
    }
    assert found["tunefa"]["kernels"] == 1 and found["operators"]["kernels"] >= 3
    assert found["tunefa"]["read_bytes"] < 2 * WORKLOAD.io_bytes
    assert found["operators"]["read_bytes"] > 2 * SCORES_BYTES
    assert all(row["l2_bytes"] and row["time_us"] for row in found.values())


@pytest.mark.usefixtures("ncu")
def test_the_ten_figures_are_all_there(tmp_path: Path) -> None:
    made = profiles.profile("ncu", WORKLOAD, ("tunefa",), tmp_path)
    assert made.files[0].stat().st_size > 0
    missing = [metric for metric in FIGURES if made.rows[0][metric] is None]
    assert not missing, missing
