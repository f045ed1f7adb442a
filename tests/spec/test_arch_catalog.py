"""tunefa/spec/arch_catalog.py: a name finds its chip, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.arch import Device

NAMES = ["sm80", "sm86", "sm87", "sm89", "sm90", "sm100", "sm120"]

DEVICES = [(each, device) for each in NAMES for device in archs.load(each).devices]


@pytest.mark.parametrize(
    ("text", "name", "device"),
    [
        ("sm90", "sm90", "NVIDIA H100 80GB HBM3"),
        (" SM90 ", "sm90", "NVIDIA H100 80GB HBM3"),
        ("h100", "sm90", "NVIDIA H100 80GB HBM3"),
        ("h200", "sm90", "NVIDIA H200"),
        ("NVIDIA H200", "sm90", "NVIDIA H200"),
        ("NVIDIA H200 NVL", "sm90", "NVIDIA H200 NVL"),
        ("h20", "sm90", "NVIDIA H20"),
        ("NVIDIA GH200 120GB", "sm90", "NVIDIA GH200 480GB"),
        ("a100", "sm80", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", "sm80", "NVIDIA A100-SXM4-40GB"),
        ("a10", "sm86", "NVIDIA A10"),
        ("rtx 4090", "sm89", "NVIDIA GeForce RTX 4090"),
        ("RTX4090", "sm89", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "sm89", "NVIDIA RTX 6000 Ada Generation"),
        ("l4", "sm89", "NVIDIA L4"),
        ("l40s", "sm89", "NVIDIA L40S"),
        ("gb200", "sm100", "NVIDIA GB200"),
        ("Orin", "sm87", "Orin"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "sm120",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "sm120",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        ),
    ],
)
def test_a_name_finds_its_arch_and_device(text: str, name: str, device: str) -> None:
    found, on = archs.find(text)
    assert (found.name, on.name) == (name, device)
    assert archs.load(text) is found


@pytest.mark.parametrize(("name", "device"), DEVICES, ids=[each.name for _, each in DEVICES])
def test_every_device_is_found_by_its_name_and_each_match(name: str, device: Device) -> None:
    for text in (device.name, *device.match, *device.aliases):
        assert archs.find(text) == (archs.load(name), device)
        assert archs.load(name).device(text) == device


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA A10G",
        "NVIDIA L40",
        "NVIDIA RTX A1000",
        "",
    ],
)
def test_another_product_is_unknown_rather_than_mistaken(text: str) -> None:
    with pytest.raises(TunefaError, match="unknown arch or device"):
        archs.find(text)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(TunefaError) as error:
        archs.load("sm9")
    assert str(error.value) == (
        f"unknown arch 'sm9': did you mean sm90? (known: {', '.join(archs.names())})"
    )
    with pytest.raises(
        TunefaError, match=r"unknown arch or device 'rtx 4091': did you mean rtx 40"
    ):
        archs.find("rtx 4091")
    with pytest.raises(TunefaError, match=r"unknown sm90 device 'NVIDIA A100'.*NVIDIA H200 NVL"):
        archs.load("sm90").device("NVIDIA A100")
    with pytest.raises(TunefaError, match=r"unknown arch '../sm90'"):
        archs.load("../sm90")


@pytest.mark.parametrize("find", [archs.find, archs.load])
@pytest.mark.parametrize("text", ["h200,a100", "h200,foo", "sm80,sm90"])
def test_a_list_of_chips_is_no_chip(find: Callable[[str], object], text: str) -> None:
    with pytest.raises(TunefaError, match=f"'{text}' is a list of chips, and one name is expected"):
        find(text)
