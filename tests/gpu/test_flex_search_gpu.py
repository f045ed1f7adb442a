"""A search of FlexAttention's options on a CUDA device, and a process that uses what it found."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from tests.support.flex_functions import HEADS, HEADS_KV, LENGTHS, SEQLEN, arguments
from tests.support.tree import TREE
from tunefa.integrations import flex
from tunefa.integrations.flex_kernels import options
from tunefa.measure.timing import Stopwatch
from tunefa.store import journal
from tunefa.store.record import Record
from tunefa.store.results import Store

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
SECONDS = 20.0
LATER = """
import json, sys, torch
from torch.nn.attention.flex_attention import flex_attention
from tests.support.flex_functions import arguments, step
from tunefa.integrations import flex
flex.use_records()
results = step(torch.compile(flex_attention, dynamic=False), arguments())
chosen = {op: choice.config for op, choice in flex.last_choices().items()}
torch.save([each.cpu() for each in results], sys.argv[1])
print(json.dumps(chosen))
"""


def exact(given: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """The same step in fp64, written out."""
    q, k, v = (each.detach().double().requires_grad_() for each in given[:3])
    place = torch.arange(SEQLEN, device="cuda")
    i, j, group = place[:, None], place[None, :], HEADS // HEADS_KV
    slopes = torch.exp2(-8.0 * torch.arange(1, HEADS + 1, device="cuda") / HEADS)
    number = torch.repeat_interleave(torch.tensor(LENGTHS, device="cuda"))
    keys, values = (each.repeat_interleave(group, dim=1) for each in (k, v))
    scores = q @ keys.mT * q.shape[-1] ** -0.5 - slopes[:, None, None] * (i - j)
    seen = (number[:, None] == number[None, :]) & (i >= j)
    out = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ values
    return out.detach(), *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))


def error(mine: Tensor, right: Tensor) -> float:
    return float((mine.double() - right).norm() / right.norm())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder, and what PyTorch compiles."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def records(home: Path) -> list[Record]:
    """The records that a search finds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TUNEFA_HOME", str(home))
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(home / "inductor"))
        found = flex.search(*arguments(), enable_gqa=True, budget_s=SECONDS)
        for path in journal.paths():
            trials = [trial for _, trial in journal.read(path)]
            outcomes = [trial.outcome for trial in trials]
            print(path.name, {each: outcomes.count(each) for each in set(outcomes)})
            print(*{f"{t.outcome}: {t.reason}" for t in trials if t.outcome != "ok"}, sep="\n")
    for record in found:
        print(record.summary, record.config, record.certificate)
    return found


def test_both_passes_have_a_record(records: list[Record], home: Path) -> None:
    assert [record.workload.op for record in records] == ["fwd", "bwd"]
    assert len({record.functions for record in records}) == 1
    assert all(record.objective == "measured" and record.certificate for record in records)
    assert all(record.not_certified is None for record in records), "other processes were there"
    assert all(record.provenance["trials"] >= 4 for record in records)
    assert len(Store([home / "results"]).records()) == 2


def test_the_found_options_are_not_slower_than_pytorch_s(records: list[Record]) -> None:
    """Each pass on its own, in interleaved rounds."""
    given, stopwatch = arguments(), Stopwatch("eager")
    chosen: dict[str, Any] = {}
    for record in records:
        own = options(record.config).items()
        chosen |= {f"{record.workload.op}_{name}": value for name, value in own}
    launches: dict[str, list[Any]] = {"fwd": [], "bwd": []}
    for more in ({}, {"kernel_options": chosen}):
        torch.compiler.reset()
        attend: Any = torch.compile(flex_attention, dynamic=False)
        out = attend(*given, enable_gqa=True, **more)
        grad = torch.ones_like(out)

        def forward(attend: Any = attend, more: Any = more) -> Any:
            with torch.no_grad():
                return attend(*given, enable_gqa=True, **more)

        def backward(out: Tensor = out, grad: Tensor = grad) -> Any:
            return torch.autograd.grad(out, given[:3], grad, retain_graph=True)

        forward(), backward()
        launches["fwd"].append(forward)
        launches["bwd"].append(backward)
    for op, (own, found) in launches.items():
        rounds = stopwatch.rounds_us([own, found], 20)
        pairs = [b / a for a, b in zip(*rounds, strict=True)]
        print(op, [statistics.median(each) for each in rounds], statistics.median(pairs))
        assert statistics.median(pairs) < 1.03


def test_a_later_process_has_the_options_by_itself(
    records: list[Record], home: Path, tmp_path: Path
) -> None:
    kept = {"TUNEFA_HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")}
    done = subprocess.run(
        [sys.executable, "-c", LATER, str(tmp_path / "results.pt")],
        cwd=TREE,
        env={**os.environ, **kept},
        check=False,
        text=True,
        timeout=120,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    chosen = json.loads(done.stdout.splitlines()[-1])
    assert chosen == {record.workload.op: record.config for record in records}
    right = exact(arguments())
    for mine, theirs in zip(torch.load(tmp_path / "results.pt"), right, strict=True):
        assert error(mine.cuda(), theirs) < 2e-2
