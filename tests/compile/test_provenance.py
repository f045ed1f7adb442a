"""tunefa/compile/provenance.py: what a result was made with, and what has changed since."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import dated, measured, predicted
from tunefa._version import __version__
from tunefa.compile import provenance
from tunefa.costmodel import version
from tunefa.costmodel.version import GPU_MODEL_VERSION, NPU_MODEL_VERSION
from tunefa.spec import kernel as kernels

KERNEL = kernels.load("attention_fwd_triton")
NOW = {"triton": "3.8.0", "compiler": "ptxas 13", "driver": "570.1", "source_hash": "0123abcd"}
THEN = dated("2026-01-01T00:00:00Z", triton="3.8.0", compiler="ptxas 13", driver="570.1")


def test_it_says_versions_the_source_and_when() -> None:
    made = provenance.of(KERNEL)
    assert made["tunefa"] == __version__ and made["source_hash"] == KERNEL.source_hash
    assert made["triton"] and made["torch"] and made["compiler"].startswith("ptxas ")
    age = datetime.now(timezone.utc) - datetime.fromisoformat(made["date"])
    assert 0 <= age.total_seconds() < 600


def test_what_is_at_hand_agrees_with_it() -> None:
    made = provenance.of(KERNEL)
    for key, value in provenance.quick(KERNEL).items():
        assert made[key] == value, key


def test_nothing_changed_is_nothing_to_say() -> None:
    assert provenance.drift(measured(provenance=THEN), NOW) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"triton": "3.7.1"}, ["triton 3.7.1 -> 3.8.0"]),
        ({"compiler": "ptxas 12"}, ["compiler ptxas 12 -> ptxas 13"]),
        ({"driver": "560.0"}, ["driver 560.0 -> 570.1"]),
        ({"source_hash": "beef"}, ["the source of attention_fwd_triton changed"]),
        ({"triton": None}, ["triton unknown -> 3.8.0"]),
        ({"compiler": None}, []),
        ({"torch": "1.0", "tunefa": "0"}, []),
        ({"source_hash": "beef", "triton": "3.7.1"},
         ["the source of attention_fwd_triton changed", "triton 3.7.1 -> 3.8.0"]),
    ],
)  # fmt: skip
def test_what_changed_is_named(changes: dict[str, Any], said: list[str]) -> None:
    assert provenance.drift(measured(provenance={**THEN, **changes}), NOW) == said


def test_another_model_of_time_is_named() -> None:
    of_today = predicted(provenance={**THEN, **version.provenance("predicted", "sm90")})
    assert provenance.drift(of_today, NOW) == []
    for model, was in ((None, "without a version"), (99, "99")):
        record = predicted(provenance={**THEN, "model": model})
        assert provenance.drift(record, NOW) == [f"model of time {was} -> {GPU_MODEL_VERSION}"]
    of_npu = predicted(objective="modelled", provenance={**THEN, "model": NPU_MODEL_VERSION})
    assert provenance.drift(of_npu, NOW) == []


def test_another_learned_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ["new"]
    monkeypatch.setattr(provenance, "learned_id", lambda objective, arch: now[0])
    made = {**THEN, "model": GPU_MODEL_VERSION}
    assert provenance.drift(predicted(provenance={**made, "learned": "new"}), NOW) == []
    for then in ({}, {"learned": "old"}):
        was = then.get("learned", "nothing")
        record = predicted(provenance={**made, **then})
        said = [f"what the model had learned {was} -> new"]
        assert provenance.drift(record, NOW) == said
    of_older = predicted(provenance={**THEN, "model": 99, "learned": "old"})
    assert provenance.drift(of_older, NOW) == [f"model of time 99 -> {GPU_MODEL_VERSION}"]
    assert provenance.drift(measured(provenance=THEN), NOW) == []


def test_the_driver_has_no_part_in_what_was_predicted() -> None:
    made = {**THEN, **version.provenance("predicted", "sm90"), "driver": "560.0"}
    record = predicted(provenance=made)
    assert provenance.drift(record, NOW) == []
    assert provenance.drift(measured(provenance=THEN), {**NOW, "driver": None}) == []


def test_a_kernel_of_a_user_s_functions_is_not_missed() -> None:
    record = measured(kernel="flex_attention_fwd.0123456789ab")
    assert provenance.drifts([record]) == [[]]


def test_kernels_that_are_gone_or_broken_are_a_drift(own_kernels: OwnKernels) -> None:
    own_kernels.add_attention("whole")
    own_kernels.add_attention("broken", lambda source: source + "\n(")
    space = own_kernels.folder / "search_spaces" / "broken.yaml"
    space.write_text("5\n")
    gone, broken, whole = provenance.drifts(
        [measured(kernel=name) for name in ("gone", "broken", "whole")]
    )
    assert gone == ["there is no kernel gone any more"]
    assert broken[0].startswith("broken cannot be loaded: ")
    assert "the source of whole changed" in whole
