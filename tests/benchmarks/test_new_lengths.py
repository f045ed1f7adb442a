"""benchmarks/new_lengths.py: each kind of calls runs, here on the CPU, and is timed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from benchmarks import new_lengths
from benchmarks.new_lengths import KINDS, Call, Kind, LaunchClock
from tests.support.fake_cuda import FakeCuda
from tests.support.hopper_on_cpu import hopper
from tunefa.runtime import process
from tunefa.runtime.call import Options, Tensors
from tunefa.spec.workload import Workload


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_calls_have_new_lengths(kind: Kind) -> None:
    w = Workload.parse(kind.workload)
    small = Workload.of(
        op=w.op, batch=1, heads=w.group, heads_kv=1, head_dim=16, dtype=w.dtype, causal=w.causal,
        seqlen_q=min(w.seqlen_q, 20), seqlen_k=20,
    )  # fmt: skip
    made = [call() for call in kind.calls(small, 3, "cpu")]
    assert len(made) == 3
    if small.seqlen_q > 1:
        shapes = [(each[0] if isinstance(each, tuple) else each).shape for each in made]
        assert len({*shapes}) == 3


def test_calls_that_require_gradients_have_them() -> None:
    (kind,) = (each for each in KINDS if each.calls is new_lengths.trained)
    small = Workload.parse("fwd_b1_h2_kv1_q20_k20_d16_bf16_causal")
    for rows, call in enumerate(kind.calls(small, 2, "cpu"), 20):
        out = call()
        assert out.shape == (1, rows, 2, 16)
        out.sum().backward()
        q, k, v = call.args  # type: ignore[attr-defined]
        assert [each.grad.shape[1] for each in (q, k, v)] == [rows] * 3


def test_no_kind_makes_the_forward_lengths_of_another_known() -> None:
    forward = [x.workload for x in KINDS if x.calls in (new_lengths.dense, new_lengths.trained)]
    assert len({*forward}) == len(forward) == 5


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> tuple[Kind, FakeCuda]:
    """A kind of calls whose kernel is launched, and the driver that is told."""
    runtime, cuda = hopper(monkeypatch, "attention_fwd_cuda_sm90")
    monkeypatch.setattr(process, "_RUNTIME", runtime)

    def run(given: Tensors) -> torch.Tensor:
        return runtime.plan(given, Options(True)).output(given, None)

    def calls(w: Workload, count: int, device: str) -> Iterator[Call]:
        q = torch.empty(1, w.seqlen_q + count, 8, 128, dtype=torch.bfloat16)
        for more in range(count):
            x = q[:, : w.seqlen_q + more]
            yield partial(run, Tensors(x, x, x))

    return Kind("dense", "b1_h8_kv8_q256_d128_causal", calls), cuda


def test_times_are_those_up_to_the_first_launch(dense: tuple[Kind, FakeCuda]) -> None:
    kind, cuda = dense
    found = new_lengths.figures(kind, 40, LaunchClock(), "cpu")
    assert found["launched"] == 1.0 and found["plans"] == 40 + 1, "one is for a next call"
    assert 0 < found["call to launch"]["p50"] <= found["call to return"]["p50"]
    assert found["known length, call to return"]["p99"] > 0
    assert len(cuda.started) == 40 + 5 * 21


def test_kinds_run_in_turns(dense: tuple[Kind, FakeCuda]) -> None:
    kind, cuda = dense
    started: list[int] = []
    found, peer = new_lengths.in_turns(
        [kind, kind], 40, LaunchClock(), lambda: started.append(len(cuda.started)), "cpu"
    )
    assert [each["launched"] for each in found] == [1.0, 1.0] and peer["p50"] > 0
    assert len(started) == 4 * new_lengths.TURN
    # Before each turn of 20 calls, of which every eighth is repeated 21 times.
    begins = started[:: new_lengths.TURN]
    assert begins == [0, 20 + 3 * 21, 2 * (20 + 3 * 21), 3 * 20 + 8 * 21]


def test_few_times_have_no_spread() -> None:
    assert new_lengths.spread([1.0]) == {}
    assert new_lengths.spread([1.0, 3.0])["p50"] == 2.0
