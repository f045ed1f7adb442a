"""tunefa/compile/ascend/pins.py: exact wheels, each with the hash that pip checks."""

from __future__ import annotations

import re

import pytest

from tunefa.compile.ascend import pins
from tunefa.compile.ascend.pins import Wheel

WHEELS = [*pins.FRONT_END_WHEELS, *map(pins.compiler, pins.COMPILERS)]


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: f"{wheel.name}-{wheel.version}")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_wheel_is_there_for_both_machines_with_its_hash(wheel: Wheel, machine: str) -> None:
    line = wheel.requirement(machine)
    assert re.fullmatch(rf"{wheel.name}==[\d.]+ --hash=sha256:[0-9a-f]{{64}}", line)


def test_no_hash_is_there_twice() -> None:
    hashes = [value for wheel in WHEELS for value in wheel.sha256.values()]
    assert len(set(hashes)) == len(hashes)


def test_a_machine_without_a_wheel_has_none() -> None:
    assert pins.compiler("1.1.0").of("riscv64") is None
    pure = next(wheel for wheel in pins.FRONT_END_WHEELS if "any" in wheel.sha256)
    assert pure.of("riscv64") == pure.sha256["any"]


def test_versions_are_those_of_the_wheels() -> None:
    assert [pins.compiler(version).version for version in pins.COMPILERS] == list(pins.COMPILERS)
    assert pins.FRONT_END in {wheel.version for wheel in pins.FRONT_END_WHEELS}
