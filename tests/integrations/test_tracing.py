"""`tunefa.trace`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tunefa
from tunefa.integrations import sdpa, sdpa_choice, tracing
from tunefa.spec.workload import Workload
from tunefa.store import traced

FWD = Workload.parse("b2_h4_kv4_q16_d32_bf16_causal")


def calls() -> None:
    q = torch.randn(2, 4, 16, 32, dtype=torch.bfloat16, requires_grad=True)
    out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.autograd.grad(out.sum(), q)
    torch.autograd.grad(tunefa.flash_attention(q, q, q, causal=True, layout="bhsd").sum(), q)


def test_the_file_has_the_workloads(tmp_path: Path) -> None:
    path = tmp_path / "workloads.yaml"
    with tunefa.trace(path):
        calls()
    calls()
    found = traced.read(path)
    assert found.device == "cpu"
    assert found.workloads[FWD].count == 2 and len(found.workloads) == 2
    assert all(calls.seconds > 0 for calls in found.workloads.values())


def test_one_trace_at_a_time(tmp_path: Path) -> None:
    with tunefa.trace(tmp_path / "one.yaml"):
        other = tunefa.trace(tmp_path / "other.yaml")
        with pytest.raises(tunefa.TunefaError, match="a trace is on already"):
            other.__enter__()
        calls()
    with tunefa.trace(tmp_path / "other.yaml"):
        calls()
    assert len(traced.read(tmp_path / "one.yaml").workloads) == 2


def test_a_program_that_fails_ends_the_trace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), tunefa.trace(tmp_path / "one.yaml"):
        raise ZeroDivisionError
    assert not (tmp_path / "one.yaml").exists()
    with tracing.tracing() as found:
        calls()
    assert len(found().workloads) == 2


NESTED = ("A+ A- T+ T-", "A+ T+ A- T-", "A+ T+ T- A-", "T+ A+ A- T-", "T+ A+ T- A-", "T+ T- A+ A-")
"""The sequences in which an activation (A) and a trace (T) may begin (+) and end (-)."""


@pytest.mark.parametrize("events", NESTED)
def test_activations_and_traces_are_nested_in_any_way(
    monkeypatch: pytest.MonkeyPatch, pytorch_calls: list[str], strict: None, events: str
) -> None:
    made = sdpa.Overrides
    monkeypatch.setattr(sdpa, "override", lambda: made("CPU"))
    monkeypatch.setattr(sdpa_choice, "is_taken", lambda chosen, device, rival: True)
    q = torch.randn(2, 4, 16, 32, requires_grad=True)
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default

    def step() -> torch.Tensor:
        return torch.autograd.grad(flash(q, q, q, 0.0, True)[0].sin().sum(), q)[0]

    right, running, active, steps = step(), tracing.tracing(), False, 0
    try:
        for event in events.split():
            if event == "T+":
                found, steps = running.__enter__(), 0
            elif event == "T-":
                seen = found()
                running.__exit__(None, None, None)
                assert [calls.count for calls in seen.workloads.values()] == [steps, steps]
                assert seen.other == {}
            else:
                active = event == "A+"
                (tunefa.activate if active else tunefa.deactivate)()
            pytorch_calls.clear()
            torch.testing.assert_close(step(), right)
            assert len(pytorch_calls) == (0 if active else 2)
            steps += 1
    finally:
        tunefa.deactivate()


def test_a_pytorch_that_cannot_be_traced_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(tunefa.TunefaError, match=r"cannot be traced.*new in 2\.10"):
        tracing.tracing().__enter__()
