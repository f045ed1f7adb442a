"""benchmarks/point_files.py: points are read as they were written, with what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks import point_files

POINTS = [{"workload": "q64", "us": {"tunefa": 1.5}}, {"workload": "q128", "us": {}}]


def test_points_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    point_files.write(path, POINTS, device="here", layers=8)
    assert point_files.read(path) == POINTS
    found = json.loads(path.read_text())
    assert (found["device"], found["layers"], found["torch"]) == ("here", 8, torch.__version__)


def test_nothing_is_written_without_a_file() -> None:
    point_files.write(None, POINTS)
