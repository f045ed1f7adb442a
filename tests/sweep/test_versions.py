"""tunefa/sweep/versions.py: all hosts of a sweep have the same versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sweeping import KERNEL, made, plan
from tunefa.compile import provenance
from tunefa.errors import TunefaError
from tunefa.spec.target import Target
from tunefa.sweep import versions
from tunefa.sweep.requests import Items

KERNELS = versions.kernels_of(plan(), Items.of(plan(), [Target.named("h200")]))


def test_the_first_host_says_them_and_others_must_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = made(tmp_path)
    measuring = plan(targets=())
    versions.agree(held, measuring, KERNELS)
    own = held.notes[versions.NOTE][KERNEL]
    assert own["torch"] and own["source_hash"] and "date" not in own
    versions.agree(held, measuring, KERNELS)
    monkeypatch.setattr(provenance, "_driver", lambda: "590.48.01")
    with pytest.raises(TunefaError, match=r"has driver .*this host has 590\.48\.01"):
        versions.agree(held, measuring, KERNELS)


def test_a_driver_changes_no_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = made(tmp_path)
    versions.agree(held, plan(), KERNELS)
    monkeypatch.setattr(provenance, "_driver", lambda: "590.48.01")
    versions.agree(held, plan(), KERNELS)
    monkeypatch.setattr(provenance, "_installed", lambda package: "0.1")
    with pytest.raises(TunefaError, match=r"has torch .*this host has 0\.1"):
        versions.agree(held, plan(), KERNELS)
