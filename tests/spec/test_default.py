"""tunefa/spec/default.py: where a default was measured, and on which archs that counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sample_space import TINY, written
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import space as spaces
from tunefa.spec.family_space import FamilySpace
from tunefa.spec.workload import Workload

SM90, SM80 = archs.load("sm90"), archs.load("sm80")
CONFIG = "config: {BLOCK: 64, num_stages: 2}\n"


def measured(folder: Path, device: str) -> spaces.Space:
    marked = TINY.replace(CONFIG, f"{CONFIG}    measured: {device}\n")
    return spaces.read(written(folder, marked))


def test_a_default_is_known_on_the_chips_of_its_device_s_arch(tmp_path: Path) -> None:
    space = measured(tmp_path, "NVIDIA H200")
    default = space.first_default(Workload.parse("q4096_d64"), SM90)
    assert default.config == {"BLOCK": 64, "num_stages": 2} and default.measured == "NVIDIA H200"
    assert default.is_known_on(SM90) and not default.is_known_on(SM80)
    other = space.first_default(Workload.parse("q4096_d128"), SM90)
    assert other.measured is None and not other.is_known_on(SM90)


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("NVIDIA H201", r":\d+: 'measured': unknown arch or device 'NVIDIA H201'"),
        ("h200", r":\d+: 'measured' must be the device's whole name: NVIDIA H200"),
        ("[NVIDIA H200]", r":\d+: 'measured' must be text"),
    ],
)
def test_a_device_that_records_do_not_name_is_an_error(
    tmp_path: Path, device: str, error: str
) -> None:
    with pytest.raises(TunefaError, match=f"tiny.yaml{error}"):
        measured(tmp_path, device)


@pytest.mark.parametrize("kernel", spaces.names())
def test_a_default_is_measured_only_on_a_device_whose_arch_it_serves(kernel: str) -> None:
    for default in spaces.load(kernel).defaults:
        on = [arch for arch in map(archs.load, archs.names()) if default.is_known_on(arch)]
        assert [arch.name for arch in on] == ([] if default.measured is None else ["sm90"])


def changing(folder: Path, changes: str) -> spaces.Space:
    return spaces.read(written(folder, f"{TINY}\ndefault_changes:\n{changes}"))


@pytest.mark.parametrize("device", ["NVIDIA H200", None])
def test_a_changed_default_was_measured_if_the_change_was(
    tmp_path: Path, device: str | None
) -> None:
    mark = f", measured: {device}" if device else ""
    marked = TINY.replace(CONFIG, f"{CONFIG}    measured: NVIDIA H200\n")
    change = f"  - {{when: true, config: {{BLOCK: 32}}{mark}}}\n"
    space = spaces.read(written(tmp_path, f"{marked}\ndefault_changes:\n{change}"))
    for workload, expected in (("q1024_d64", device), ("q1024_d128", None)):
        found = space.first_default(Workload.parse(workload), SM90)
        assert found.config["BLOCK"] == 32 and found.measured == expected


def test_the_first_change_that_matches_and_fits_is_made(tmp_path: Path) -> None:
    space = changing(
        tmp_path,
        "  - {when: seqlen_k >= 4096, config: {num_stages: 1}}\n"  # a rule refuses it
        "  - {when: seqlen_k >= 2048, config: {BLOCK: 32}}\n",
    )
    for workload, rows in (("q4096_d64", 32), ("q2048_d64", 32), ("q1024_d64", 64)):
        whole, family = (
            Workload.parse(workload),
            FamilySpace.of(space, Workload.parse("q1024_d64"), SM90),
        )
        for each in (space, family):
            assert each.first_default(whole, SM90).config == {"BLOCK": rows, "num_stages": 2}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("{NO_SUCH: 1}", "unknown parameter NO_SUCH"),
        ("{num_stages: 99}", "num_stages=99 is not in the space"),
    ],
)
def test_a_change_outside_of_the_space_is_an_error(tmp_path: Path, change: str, error: str) -> None:
    with pytest.raises(TunefaError, match=rf"tiny.yaml:\d+: default change 1: {error}"):
        changing(tmp_path, f"  - {{when: true, config: {change}}}\n")
