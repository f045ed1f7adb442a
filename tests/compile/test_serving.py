"""tunefa/compile/serving.py: which records serve with what is installed, and why others do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.fixed_store import Fixed
from tests.support.made_here import CUDA, OURS, made_here
from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import dated, measured, predicted
from tunefa.compile import languages, serving
from tunefa.compile.serving import CONFIRMED, Installed, Serving, UsableStore
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.store.record import Record

ON_H200 = Target.named("h200")
SOUND = made_here()
NOW = {"triton": "3.7.1"}


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The versions of the toolchain of Triton, which a test may change."""
    told: dict[str, Any] = dict(NOW)
    monkeypatch.setattr(languages.load("triton"), "quick_versions", lambda: told)
    return told


def made_with(**versions: Any) -> Record:
    kept = {k: v for k, v in SOUND.provenance.items() if k not in ("triton", "compiler")}
    return replace(SOUND, provenance={**kept, **versions})


@pytest.mark.parametrize(
    ("then", "now", "why"),
    [
        ({"triton": "3.6.0"}, {}, "Triton 3.6.0, and this machine has 3.7.1"),
        ({}, {}, "an unknown version of Triton, and this machine has 3.7.1"),
        (NOW, {"triton": None}, "Triton 3.7.1, and this machine has no Triton to compare with"),
        ({"compiler": "nvrtc 13.0.88"}, {"triton": ..., "compiler": "nvrtc 13.5.37"},
         "NVRTC 13.0.88, and this machine has 13.5.37"),
        ({"compiler": "nvrtc 13.0.88"}, {"triton": ..., "compiler": None},
         "NVRTC 13.0.88, and this machine has no NVRTC to compare with"),
        ({"triton": "ascend 3.2", "compiler": "bishengir 1.1"},
         {"triton": "ascend 3.3", "compiler": "bishengir 1.2"},
         "Triton ascend 3.2, and this machine has ascend 3.3; "
         "with bishengir 1.1, and this machine has 1.2"),
    ],
)  # fmt: skip
def test_other_compilers_leave_a_record_unconfirmed(
    versions: dict[str, Any], then: dict[str, str], now: dict[str, Any], why: str
) -> None:
    versions.update(now)
    for key in [key for key, value in versions.items() if value is ...]:
        del versions[key]
    record = made_with(**then)
    assert Installed().serving(record) == Serving("unconfirmed", f"measured with {why}")
    expected = f"measured with {why}: unconfirmed, `tunefa verify` confirms it"
    assert Installed().remark(record) == expected


def test_what_no_compiler_made_has_none_to_compare(versions: dict[str, Any]) -> None:
    made = replace(made_with(), objective="estimated", device=None, mode=None)
    assert Installed().as_made(made) == CONFIRMED
    assert Installed().as_made(replace(made, objective="predicted")).state == "unconfirmed"


def test_ptxas_belongs_to_triton(versions: dict[str, Any]) -> None:
    assert Installed().serving(made_with(**NOW, compiler="ptxas 12.8")) == CONFIRMED
    assert Installed().remark(made_with(**NOW)) == ""


def test_a_compiler_that_cannot_be_asked_is_one_to_compare_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoCompiler:
        def versions(self) -> dict[str, str]:
            raise TunefaError("no compiler found")

    monkeypatch.setattr(languages, "load", lambda name: NoCompiler())
    found = Installed().serving(made_with(compiler="nvrtc 13.0.88"))
    assert found.state == "unconfirmed" and "no NVRTC to compare with" in found.why


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (replace(SOUND, provenance=dated("2026-01-01", source_hash="beef")),
         f"measured with another source of {OURS} (beef, and this machine has "),
        (predicted(), f"predicted with another source of {OURS} (0123abcd, and this machine "),
        (replace(SOUND, kernel="gone"), "made for what is not known here: unknown kernel 'gone'"),
        (replace(SOUND, arch="sm91"), "made for what is not known here: unknown arch 'sm91'"),
        (replace(SOUND, config={**SOUND.config, "BLOCK_M": 16}),
         "made with a config that the space refuses: a warp needs at least 16 query rows"),
        (replace(SOUND, arch="ascend910b3"), f"made for what {OURS} does not serve: "),
    ],
)  # fmt: skip
def test_what_does_not_serve(record: Record, why: str) -> None:
    found = Installed().serving(record)
    assert found.state == "refused" and found.why.startswith(why)
    assert Installed().remark(record) == ""


def test_what_failed_with_other_compilers_is_no_reason(versions: dict[str, Any]) -> None:
    noted = serving.failed(made_with(**NOW), kernels.load(OURS), "wrong")
    noted.provenance[serving.FAILED]["triton"] = "3.6.0"
    assert Installed().serving(noted) == CONFIRMED
    versions["triton"] = "3.6.0"
    assert Installed().serving(noted).state == "refused"
    odd = replace(noted, provenance={**noted.provenance, serving.FAILED: "yes"})
    assert Installed().serving(odd).state == "unconfirmed"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "NVIDIA H100 PCIe"}, "measured on NVIDIA H100 PCIe"),
        ({"device": "NVIDIA H200 MIG 1g.18gb"}, "measured on NVIDIA H200 MIG 1g.18gb"),
        ({"device": None, "objective": "predicted", "mode": None}, "predicted, not measured"),
    ],
)
def test_what_does_not_serve_as_a_measurement_of_a_device(changes: Any, why: str) -> None:
    record = replace(SOUND, **changes)
    assert Installed().serving(record) == CONFIRMED
    assert Installed().serving(record, ON_H200) == Serving("refused", why)
    assert Installed().serving(SOUND, ON_H200) == CONFIRMED


def test_a_broken_kernel_refuses_its_records_only(own_kernels: OwnKernels) -> None:
    own_kernels.add_attention("whole")
    own_kernels.add_broken("broken")
    installed = Installed()
    broken = installed.serving(replace(SOUND, kernel="broken"))
    assert broken.state == "refused" and "broken.yaml" in broken.why
    whole = replace(SOUND, kernel="whole")
    made = {**SOUND.provenance, "source_hash": installed.kernel("whole").source_hash}
    assert installed.serving(replace(whole, provenance=made)) == CONFIRMED


def test_versions_are_asked_once(versions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    one = Installed()
    assert one.serving(made_with(**NOW)) == CONFIRMED
    monkeypatch.delattr(languages.load("triton"), "quick_versions")
    assert one.serving(made_with(**NOW)) == CONFIRMED


def test_usable_records_are_the_confirmed_then_the_unconfirmed() -> None:
    """An unconfirmed record, even a newer one, gives way to a confirmed one of its question."""
    newer = {"triton": "3.6.0", "date": "2099-01-01T00:00:00Z"}
    other = made_here(config={**SOUND.config, "BLOCK_N": 128}, versions=newer, median_us=1.0)
    alone = made_here("q512", newer)
    foreign = measured("q256")
    known = Fixed([other, alone, foreign, SOUND])
    usable = UsableStore(known, Installed())
    assert usable.records() == [alone, SOUND] and usable.best() == [SOUND, alone]
    assert usable.remark(alone) and not usable.remark(SOUND)
    assert serving.best(known, Installed()) == [foreign, SOUND, alone]


def test_the_real_toolchains_are_told_apart() -> None:
    for kernel in (OURS, CUDA):
        record = made_here(kernel=kernel)
        assert Installed().as_made(record) == CONFIRMED
        key = "triton" if kernel == OURS else "compiler"
        changed = replace(record, provenance={**record.provenance, key: "nvrtc 1.0"})
        assert Installed().as_made(changed).state == "unconfirmed"
