"""tunefa/search/winner.py: what a record says of its check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.predicted_case import KERNEL, SM90, WORKLOAD, ok
from tunefa.costmodel import version
from tunefa.costmodel.version import GPU_MODEL_VERSION
from tunefa.search.winner import Winner
from tunefa.spec.trial import MemoryPlan, Resources, Trial

GLUON = replace(KERNEL, space=replace(KERNEL.space, language="gluon"))
RIGHT = replace(ok(64, 5.0), error=1e-4)


@pytest.mark.parametrize(
    ("won", "device", "check"),
    [
        (Winner(KERNEL, RIGHT, None, None), None, "relative error 1.0e-04 against fp64 in the int"),
        (
            Winner(KERNEL, RIGHT, None, "eager"),
            "NVIDIA H200",
            "relative error 1.0e-04 against fp32",
        ),
        (Winner(GLUON, ok(64, 5.0), None, None), None, "none: Gluon has no interpreter, and only"),
        (Winner(GLUON, RIGHT, None, "eager"), "NVIDIA H200", "relative error 1.0e-04 against fp32"),
    ],
)
def test_the_check_is_told_or_why_there_is_none(
    won: Winner, device: str | None, check: str
) -> None:
    record = won.record(WORKLOAD, SM90, device, {})
    assert record.provenance["check"].startswith(check)


def test_a_prediction_keeps_the_version_of_its_model() -> None:
    said = Winner(KERNEL, RIGHT, None, None).record(WORKLOAD, SM90, None, {}).provenance
    assert said["model"] == GPU_MODEL_VERSION
    of_device = Winner(KERNEL, RIGHT, None, "eager").record(WORKLOAD, SM90, "NVIDIA H200", {})
    assert "model" not in of_device.provenance


def test_a_prediction_keeps_the_id_of_what_its_model_had_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(version, "learned_id", lambda objective, arch: f"{objective} {arch}")
    won = Winner(KERNEL, RIGHT, None, None)
    assert won.record(WORKLOAD, SM90, None, {}).model == (GPU_MODEL_VERSION, "predicted sm90")
    assert "learned" not in won.record(WORKLOAD, SM90, "NVIDIA H200", {}).provenance
    nothing = lambda objective, arch: None  # noqa: E731
    monkeypatch.setattr(version, "learned_id", nothing)
    assert "learned" not in won.record(WORKLOAD, SM90, None, {}).provenance


def test_what_a_compiler_changed_is_in_the_record_and_its_plans_are_not() -> None:
    planned = MemoryPlan({"ub": -0.1}, {"enable-auto-multi-buffer": False})
    resources = Resources(ub_bytes=1000, planned=planned, code="ab")
    trial = Trial({"BLOCK_M": 64}, "ok", resources=resources, predicted_us=10.0)
    record = Winner(KERNEL, trial, None, None, "modelled").record(WORKLOAD, SM90, None, {})
    assert record.objective == "modelled"
    assert record.resources == Resources(ub_bytes=1000)
    assert record.provenance["changed_by_the_compiler"] == {"enable-auto-multi-buffer": False}


def test_versions_that_are_known_are_not_looked_for_again() -> None:
    known = {"compiler": "nvrtc 1.2", "source_hash": "abc", "date": "2026-01-01"}
    won = Winner(KERNEL, RIGHT, None, "eager", provenance=known)
    said = won.record(WORKLOAD, SM90, "NVIDIA H200", {"trials": 3}).provenance
    assert said["compiler"] == "nvrtc 1.2" and said["trials"] == 3 and "torch" not in said
