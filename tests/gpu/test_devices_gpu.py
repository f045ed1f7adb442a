"""Devices as the driver has them, on the device that is there."""

from __future__ import annotations

import pytest
import torch

from tunefa.cli.targets import seen
from tunefa.compile.launch.driver import SeenDevice

pytestmark = pytest.mark.gpu


def test_the_driver_sees_what_torch_sees() -> None:
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    assert seen() == [
        SeenDevice(p.name, (p.major, p.minor), p.multi_processor_count, p.total_memory)
        for p in found
    ]
