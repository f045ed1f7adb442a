"""tunefa/sweep/beat.py: the signs of life of a slice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.sweeping import made
from tunefa.sweep import beat
from tunefa.sweep.host_process import HostProcess


def test_a_slice_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat, "BEAT_S", 0.01)
    held = made(tmp_path)
    claimed = held.claim("sm90/x/y", 5.0, HostProcess.here())
    assert claimed is not None
    with beat.Beat(held, claimed) as signs:
        signs.note(7)
        until = time.monotonic() + 10.0
        while held.slices()[0].beat.get("done") != 7:
            assert time.monotonic() < until
            time.sleep(0.01)
