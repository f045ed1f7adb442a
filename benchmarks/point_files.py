"""Files of measured points: JSON with the device and the versions that they were measured with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

Point = dict[str, Any]
"""The figures of one workload."""


def read(path: Path) -> list[Point]:
    """Returns the points of a file."""
    found: list[Point] = json.loads(path.read_text(encoding="utf-8"))["points"]
    return found


def write(path: Path | None, points: Sequence[Point], **asked: Any) -> None:
    """Writes points, and with what else was asked for, to a file, if there is to be one."""
    if path is None:
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found = {"device": device, "torch": torch.__version__, **asked, "points": points}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
