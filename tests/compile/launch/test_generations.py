"""tunefa/compile/launch/generations.py: which driver loads what."""

from __future__ import annotations

import ctypes
from ctypes import c_int
from types import SimpleNamespace

import pytest

from tunefa.compile.launch import driver, generations
from tunefa.compile.launch.driver import DriverError


@pytest.mark.parametrize(
    ("newest", "compiler", "old"),
    [
        ((12, 8), "nvrtc 13.0.88", True),
        ((12, 0), "ptxas 12.8.93", False),
        ((13, 0), "ptxas 12.8.93", False),
        ((13, 0), "nvrtc 13.5.37", False),
        ((11, 8), "ptxas 12.8.93", True),
        (None, "nvrtc 13.0.88", False),
        ((11, 8), "None", False),
    ],
)
def test_a_driver_of_an_older_generation_is_refused(
    newest: tuple[int, int] | None, compiler: str, old: bool
) -> None:
    why = generations.why_too_old(newest, compiler)
    assert (why is not None) is old
    if why and newest:
        assert why.startswith(f"{compiler} compiled for CUDA ")
        assert why.endswith(f"driver knows CUDA up to {newest[0]}.{newest[1]}: update the driver")


def test_the_driver_tells_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(place: int) -> int:
        c_int.from_address(place).value = 12080
        return 0

    kind = ctypes.CFUNCTYPE(c_int, ctypes.c_void_p)
    known = SimpleNamespace(cuDriverGetVersion=kind(version))
    monkeypatch.setattr(driver, "library", lambda: known)
    assert generations.newest_cuda() == (12, 8)
    known.cuDriverGetVersion = kind(lambda place: 100)
    assert generations.newest_cuda() is None
    monkeypatch.setattr(driver, "library", lambda: None)
    assert generations.newest_cuda() is None


def test_a_binary_that_was_not_loaded() -> None:
    new = generations.refusal(DriverError(222, "cuModuleLoadData", "bad"), "NVRTC 13.0.88")
    assert new.startswith("the driver does not load what NVRTC 13.0.88 made: update the driver, or")
    other = generations.refusal(DriverError(2, "cuModuleLoadData", "out of memory"), "ptxas 12.8")
    assert other.startswith("the driver refuses what ptxas 12.8 made: CUDA error 2")
