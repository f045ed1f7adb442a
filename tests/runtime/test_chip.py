"""tunefa/runtime/chip.py: what kernels are compiled for, and why they do not run."""

from __future__ import annotations

import pytest
import torch

from tests.support.fake_kernel import H200
from tunefa.cli import targets
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.runtime.chip import Chip


def cuda(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> Chip:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    there = SeenDevice(name, capability, 132, 141 * 2**30)
    monkeypatch.setattr(driver, "device", lambda index: there)
    return Chip.of(torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA GH200 120GB", (9, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", (8, 0)),
    ],
)
def test_a_search_and_the_runtime_have_one_name_for_a_device(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]
) -> None:
    target = cuda(monkeypatch, name, capability).target
    searched = targets.described(SeenDevice(name, capability, 132, 141 * 2**30))
    assert target is not None and target == searched


def test_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda(monkeypatch, "NVIDIA H200", (9, 0)) == H200
    turing = cuda(monkeypatch, "Tesla T4", (7, 5))
    assert turing.target is None
    assert turing.why_not.startswith("there is no arch sm75 for Tesla T4 (known: sm80, ")
    cpu = Chip.of(torch.device("cpu"))
    assert cpu.why_not == "q is on cpu, and kernels run on CUDA devices"
    monkeypatch.setattr(torch.version, "hip", "6.4")  # an MI250's capability is 9.0 too
    amd = cuda(monkeypatch, "AMD Instinct MI250", (9, 0))
    assert amd.target is None and "AMD Instinct MI250 is an AMD device" in amd.why_not
