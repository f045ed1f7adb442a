"""tunefa/cli/reports/doctor.py: devices, places and problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tunefa.cli import targets
from tunefa.compile.launch.driver import SeenDevice


def test_devices_are_described(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [
        SeenDevice("NVIDIA H200", (9, 0), 132, 150_000_000_000),
        SeenDevice("NVIDIA V100", (7, 0), 80, 0),
    ]
    monkeypatch.setattr(targets, "seen", lambda: seen)
    out = run("doctor").stdout
    assert "NVIDIA H200: 132 SMs, 140 GiB" in out
    assert "sm90, TMA yes, WGMMA yes, fp8 yes" in out
    assert "NVIDIA V100 is sm70, which tunefa does not know" in out
    assert "predicting for" not in out


def test_a_place_that_cannot_be_written_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "file"))
    assert "results, cannot be created: not writable:" in run("doctor", "--arch", "sm90").stdout
