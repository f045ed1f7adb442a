"""tunefa/measure/gate.py: kernels that are wrong in few rows, or on few inputs, are `wrong`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support import planted_faults as planted
from tests.support.fake_device import Device
from tests.support.predicted_case import CONFIG, FITS, WORKLOAD, config, ok
from tunefa.measure import check
from tunefa.measure.gate import Gate, Probe
from tunefa.measure.measured import Measured
from tunefa.measure.ops.fwd import kinds_of_finalists
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload

FAULTS = [
    (planted.one_row, "the output of row 5 of head 1 in batch 0 is off by 3.0e-01 (limit 8e-03)"),
    (planted.one_head, "of head 3 in batch 1 is off by 5."),
    (planted.beside_nan, "in batch 0 is NaN or infinite (not written, overflowed, or it read"),
    (planted.positive_v, "head 0 in batch 1 is off by 4.|head 1 in batch 1 is off by 4."),
    (planted.positive_v, "V is positive"),
    (planted.falling_scores, "where scores fall along the keys and V"),
    (planted.lse_of_one_row, "the logsumexp of row 7 of head 2 in batch 1 is off by 1.0e-02 "),
    (planted.written_beside, "it writes to memory outside of its outputs on fwd_b2_h4"),
    (planted.inputs_spoilt, "it writes to memory outside of its outputs on fwd_b2_h4"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "sign"), FAULTS)
def test_little_that_is_wrong_is_found_and_named(
    measured: Measured, device: Device, fault: Any, sign: str
) -> None:
    device.faults[64] = fault
    judged = measured.judge(Trial(CONFIG, "ok", resources=FITS))
    assert judged.outcome == "wrong" and not judged.samples_us
    assert any(part in judged.reason for part in sign.split("|")), judged.reason
    # What it spoilt is not what the next config is judged by.
    assert measured.judge(Trial(config(32), "ok", resources=FITS)).outcome == "ok"


@pytest.mark.parametrize("fault", [planted.positive_v, planted.falling_scores, planted.one_row])
def test_finalists_see_hostile_inputs_of_the_workloads_shape(
    measured: Measured, device: Device, fault: Any
) -> None:
    def when_long(tensors: Any) -> None:
        if tensors[0].shape[:3] == (WORKLOAD.batch, WORKLOAD.heads, WORKLOAD.seqlen_q):
            fault(tensors)

    device.faults[64] = when_long
    assert measured.judge(Trial(config(64), "ok", resources=FITS)).outcome == "ok"
    raced = measured.race([ok(64, 1.0), ok(32, 2.0)], None)
    assert raced.winner is not None and raced.winner.config == config(32)
    (wrong,) = [trial for trial in raced.trials if trial.outcome != "ok"]
    assert wrong.outcome == "wrong" and str(WORKLOAD) in wrong.reason
    # The error that a record would hold is that of normal inputs.
    assert raced.winner.error is not None and 1e-3 < raced.winner.error < 3e-3


def right(probe: Probe) -> None:
    """Writes what the reference wrote."""
    out, lse = probe.expected.out, probe.expected.lse
    probe.tensors[3].copy_(out.transpose(0, 1) if probe.shape.varlen else out)
    probe.tensors[4].copy_(lse)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "e4m3"])
@pytest.mark.parametrize("mask", ["causal", "full_w20_a9", "softcap"])
def test_a_right_kernel_passes(mask: str, dtype: str) -> None:
    shape = check.ragged(Workload.parse(f"h4_kv2_q512_d32_{dtype}_{mask}"), {"BLOCK_M": 16})
    gate = Gate("cpu")
    probe = gate.probe(shape)
    found = gate.compare(lambda: right(probe), probe)
    assert found.passed and found.repeatable, found.reason


def test_a_packed_sequence_does_not_see_the_nan_of_its_neighbour() -> None:
    shape = check.ragged(Workload.parse("b8_h4_kv2_q512_d32_bf16_varlen"), {"BLOCK_M": 16})
    gate = Gate("cpu")
    probe = gate.probe(shape)
    assert gate.compare(lambda: right(probe), probe).passed
    ends = torch.cat([probe.tensors[5], probe.tensors[5][-1:]]).tolist()
    poisoned = slice(*ends[2:4])
    assert all(bool(each[slice(*_keys(probe, i))].isnan().all()) for i, each in _inputs(probe))

    def anything_in_it(row: int) -> Any:
        def launch() -> None:
            right(probe)
            probe.tensors[3][row] = 7.0

        return launch

    assert gate.compare(anything_in_it(poisoned.start), probe).passed
    found = gate.compare(anything_in_it(poisoned.stop), probe)
    assert not found.passed and "row 0 of head" in found.reason and "sequence 3" in found.reason


def _inputs(probe: Probe) -> list[tuple[int, Any]]:
    return list(enumerate(probe.tensors[:3]))


def _keys(probe: Probe, i: int) -> list[int]:
    """The rows of the sequence of NaN in q, or in k and v."""
    starts: list[int] = probe.tensors[5 if i == 0 else 6].tolist()
    return starts[2:4]


def test_inputs_are_the_same_in_every_search_and_made_once() -> None:
    shape = Workload.parse("b2_h2_q20_k30_d16_fp32")
    gate, other = Gate("cpu"), Gate("cpu")
    assert gate.probe(shape) is gate.probe(shape)
    pairs = zip(gate.probe(shape).tensors[:3], other.probe(shape).tensors[:3], strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_few_inputs_are_kept_beside_those_of_a_large_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = [Workload.parse(f"b2_h2_q{q}_k30_d16_bf16") for q in (20, 21, 22)]
    gate = Gate("cpu")
    first = gate.probe(shapes[0])
    monkeypatch.setattr("tunefa.measure.gate.CACHED_BYTES", first.bytes - 1)
    gate.probe(shapes[1])
    assert gate.probe(shapes[0]) is not first
    gate.large_probe(shapes[2], "normal")
    assert not gate._probes


def test_a_fast_workload_may_be_eight_times_as_wrong() -> None:
    gates = {}
    for text in ("b2_h2_q64_k96_d64_bf16", "b2_h2_q64_k96_d64_bf16_fast"):
        gate = gates[text] = Gate("cpu")
        probe = gate.probe(Workload.parse(text))

        def launch(probe: Probe = probe) -> None:
            right(probe)
            probe.tensors[3].mul_(1.02)

        assert gate.compare(launch, probe).passed == text.endswith("fast")
    strict, fast = (gate.limit(gate.probe(Workload.parse(text))) for text, gate in gates.items())
    assert fast == pytest.approx(8 * strict)


def test_one_launch_of_several_sequences_shows_finalists_everything() -> None:
    assert kinds_of_finalists(Workload.parse("b2_q512")) == ("mixed",)
    assert kinds_of_finalists(Workload.parse("q512")) == ("hostile", "normal")
    shape = Workload.parse("h2_q64_k96_d64_bf16")
    assert Gate("cpu").limit(Probe.of(shape, "hostile", "cpu")) == math.inf
