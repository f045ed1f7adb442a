"""tunefa/measure/expected_gradients.py: what is wrong is found and named."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tunefa.measure.expected_gradients import NAMES
from tunefa.measure.gate import Gate, Probe
from tunefa.spec.workload import Workload

TEXTS = (
    "bwd_b2_h4_kv2_q70_k90_d32_fp16_causal",
    "bwd_b2_h4_kv2_q70_k90_d32_dv48_bf16_full_w20_a9",
    "bwd_b5_h4_kv2_q70_k90_d32_fp16_causal_varlen",
    "bwd_b2_h4_kv2_q90_k60_d32_bf16_causal_softcap",
)


def probe_of(text: str, kind: Any = "mixed") -> Probe:
    return Probe.of(Workload.parse(text), kind, "cpu")


def write(probe: Probe) -> tuple[Any, ...]:
    """Writes the right gradients; returns (dq, dk, dv)."""
    for out, right in zip(probe.outputs, probe.expected.grads, strict=True):
        out.copy_(right)
    return probe.outputs


@pytest.mark.parametrize("kind", ["mixed", "hostile"])
@pytest.mark.parametrize("text", TEXTS)
def test_right_gradients_pass(text: str, kind: Any) -> None:
    probe = probe_of(text, kind)
    found = probe.expected.compare(*write(probe))
    assert found.passed and found.row.error < found.row.limit / 2
    assert not probe.strayed()


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("text", TEXTS)
def test_a_row_that_is_off_is_found_and_named(text: str, number: int) -> None:
    probe = probe_of(text)
    off = write(probe)[number]
    norms, judged = probe.expected.norms[number], probe.expected.judged[number]
    place = tuple(int(i) for i in torch.nonzero(judged & (norms > norms.nanmedian()))[0])
    off[place] *= 1.05
    found = probe.expected.compare(*probe.outputs)
    assert not found.passed and f"the {NAMES[number]} of row" in found.reason
    row, head = (place[0], place[1]) if probe.shape.varlen else (place[2], place[1])
    assert f"of head {head} in" in found.reason
    assert probe.shape.varlen or f"row {row} of" in found.reason


@pytest.mark.parametrize("number", range(3))
def test_an_element_that_is_not_written_is_wrong(number: int) -> None:
    probe = probe_of(TEXTS[0])
    write(probe)[number][0, 0, 3, 5] = math.nan
    found = probe.expected.compare(*probe.outputs)
    assert not found.passed and f"the {NAMES[number]} of row 3 of head 0" in found.reason


def test_what_a_neighbour_of_nan_writes_is_not_judged() -> None:
    probe = probe_of(TEXTS[2])
    write(probe)
    for out, judged in zip(probe.outputs, probe.expected.judged, strict=True):
        assert not bool(judged.all())
        out[~judged] = math.nan
    assert probe.expected.compare(*probe.outputs).passed


@pytest.mark.parametrize(("share", "agrees"), [(0.1, True), (0.6, False), (math.nan, False)])
def test_sums_without_an_order_may_differ_a_little(share: float, agrees: bool) -> None:
    """The second launch moves one row of dQ by that share of its limit."""
    probe = probe_of(TEXTS[0].replace("fp16", "fp32"))
    limits = probe.expected.limits[0]
    launches = iter(range(9))

    def launch() -> None:
        dq = write(probe)[0]
        if next(launches) == 1:
            dq[0, 1, 40, 7] += float(share * limits[0, 1, 40])

    found = Gate("cpu").compare(launch, probe, unordered=("dq",))
    assert found.repeatable == agrees
    assert not Gate("cpu").compare(launch_twice(probe), probe).repeatable


def launch_twice(probe: Probe) -> Any:
    """A launch whose dV changes in its last bit from launch to launch."""
    launches = iter(range(9))

    def launch() -> None:
        dv = write(probe)[2]
        dv[0, 0, 0, 0] *= 1.0 + next(launches) * 2**-22

    return launch
