"""The process that makes one call under a profiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tunefa.errors import TunefaError
from tunefa.experiments import profiled
from tunefa.spec.workload import Workload

SMALL = Workload.parse("b1_h2_q64_d32_fp16_causal")


def test_ranges_have_tunefas_names() -> None:
    assert profiled.range_name("tunefa") == "tunefa"
    assert profiled.range_name("operators") == "tunefa:operators"


@pytest.mark.parametrize("contestant", ["tunefa", "operators"])
def test_a_call_on_the_cpu(contestant: str) -> None:
    out = profiled.call_of(SMALL, contestant, "cpu", seed=3)()
    again = profiled.call_of(SMALL, contestant, "cpu", seed=3)()
    other = profiled.call_of(SMALL, contestant, "cpu", seed=4)()
    assert out.shape == (1, 2, 64, 32) and torch.equal(out, again)
    assert not torch.equal(out, other)


@pytest.mark.parametrize(
    ("contestant", "workload", "device", "said"),
    [
        ("opera", "q64_d32", "cpu", "did you mean operators"),
        ("operators", "b2_q64_d32_varlen", "cpu", "operators does not serve"),
        ("tunefa", "q64_d32", "cuda", "PyTorch sees no GPU here"),
    ],
)
def test_what_cannot_be_called(
    contestant: str, workload: str, device: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TunefaError, match=said):
        profiled.call_of(Workload.parse(workload), contestant, device)


def test_the_command_fails_in_one_sentence_without_a_gpu() -> None:
    words = profiled.command(SMALL, "operators", 7)
    assert words == [
        *(sys.executable, "-m", "tunefa.experiments.profiled", str(SMALL), "operators", "7")
    ]
    if not torch.cuda.is_available():
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert last == "tunefa: PyTorch sees no GPU here: run this on a machine that has one"
