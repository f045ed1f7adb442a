"""`plan.frozen_plan` and a frozen runtime: the records of a lock file, or an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.fake_kernel import DEFAULT, H200, FakeKernel, FakeLanguage, on_cpu
from tests.support.planned_calls import (
    POINTER,
    TMA,
    UNSERVED,
    WORKLOAD,
    call,
    record,
    reference_of,
    unaligned,
)
from tests.support.sample_records import measured
from tests.support.tree import TREE
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError
from tunefa.runtime import plan
from tunefa.runtime.call import Call, Options, Tensors, heads_first
from tunefa.runtime.chip import Chip
from tunefa.runtime.lock_file import MARK, LockFile
from tunefa.runtime.plan import Plan
from tunefa.runtime.process import Runtime
from tunefa.store import results as store
from tunefa.store.record import Record
from tunefa.store.results import Store

SMALL = "b2_h4_kv2_q16_k24_d32_fp32_causal"


def tensors(seqlen_k: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of SMALL."""
    return torch.ones(2, 16, 4, 32), *torch.ones(2, 2, seqlen_k, 2, 32)


def frozen_of(
    made: Call, language: FakeLanguage, *records: Record, chip: Chip = H200, **changes: Any
) -> Plan:
    fake: Any = FakeKernel(**changes)
    lock = LockFile(Path("tunefa.lock.yaml"), records)
    found: Plan = plan.frozen_plan(made, chip, lock, Installed([fake]), language.compile)
    return found


def test_frozen_runs_the_exact_record(monkeypatch: pytest.MonkeyPatch) -> None:
    made = call()
    q, k, v = (heads_first(x, "bshd") for x in (made.q, made.k, made.v))
    with on_cpu(monkeypatch) as language:
        runs = frozen_of(made, language, record(TMA))
        out, _ = runs.run(Tensors(q, k, v), None)
    chosen = runs.chosen
    assert (chosen.kernel, chosen.how, chosen.config) == ("attention_fwd_triton", "exact", TMA)
    assert chosen.why == (
        f"exact: frozen to tunefa.lock.yaml, measured on NVIDIA H200 for {WORKLOAD}"
    )
    assert chosen.workload == WORKLOAD and language.launched == [TMA]
    assert torch.equal(out, reference_of(made)[0])


@pytest.mark.parametrize(
    "held",
    [
        [record(TMA, "b2_h8_kv2_q64_d64_bf16_causal")],
        [record(TMA, device="NVIDIA H100")],
        [record(TMA, device=None, objective="predicted", mode=None)],
        [],
    ],
)
@pytest.mark.filterwarnings("error")
def test_frozen_serves_nothing_less(monkeypatch: pytest.MonkeyPatch, held: list[Record]) -> None:
    with (
        on_cpu(monkeypatch) as language,
        pytest.raises(TunefaError, match=f"no record measured for {WORKLOAD} on NVIDIA H200: "),
    ):
        frozen_of(call(), language, *held)
    assert language.compiled == []


def test_frozen_serves_the_window_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    held = record(TMA, f"{WORKLOAD}_w8")
    with on_cpu(monkeypatch) as language:
        assert frozen_of(call(window=8), language, held).chosen.config == TMA
        for window in (None, 7, 16):
            with pytest.raises(TunefaError, match="no record measured for"):
                frozen_of(call(window=window), language, held)
        whole = frozen_of(call(window=16), language, record(TMA))  # all 16 keys
    assert whole.chosen.workload == WORKLOAD


@pytest.mark.parametrize("kind", ["base", "strides", "expanded"])
def test_frozen_changes_no_config_for_its_tensors(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made = unaligned(kind)
    with on_cpu(monkeypatch) as language:
        with pytest.raises(TunefaError, match="USE_TMA is 1, and the tensors are not 16-byte"):
            frozen_of(made, language, record(TMA, str(made.workload())))
        exact = frozen_of(made, language, record(POINTER, str(made.workload())))
    assert exact.chosen.config == POINTER and language.compiled == [(POINTER, False)]


def test_frozen_copies_no_tensors_for_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = unaligned("base")
    with (
        on_cpu(monkeypatch) as language,
        pytest.raises(TunefaError, match="it reads whole 16 bytes"),
    ):
        frozen_of(
            made, language, record(TMA, str(made.workload())), unaligned="it reads whole 16 bytes"
        )


@pytest.mark.filterwarnings("error")
def test_frozen_has_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_cpu(monkeypatch, broken=frozenset({128})) as language:
        with pytest.raises(TunefaError, match="that cannot be used: ptxas says no; install"):
            frozen_of(call(), language, record(TMA))
        with pytest.raises(TunefaError, match="a config that the space refuses: BLOCK_M"):
            frozen_of(call(), language, record(TMA), refused_block_m=frozenset({128}))
        with pytest.raises(TunefaError, match=r"\(0123abcd, and this machine has ffff\)"):
            frozen_of(call(), language, record(TMA), source_hash="ffff")
    assert language.compiled == []


@pytest.mark.filterwarnings("error")
def test_frozen_runs_an_unconfirmed_record_only_if_it_is_marked_and_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = record(TMA)
    marked = record(TMA, provenance={**held.provenance, MARK: "measured with another"})
    with on_cpu(monkeypatch, triton="3.8.0") as language:
        with pytest.raises(TunefaError, match=r"Triton 3\.7\.1, and this machine has 3\.8\.0; "):
            frozen_of(call(), language, held)
        chosen = frozen_of(call(), language, marked).chosen
    assert (chosen.how, chosen.config) == ("exact", TMA)
    assert chosen.why == (
        f"exact: frozen to tunefa.lock.yaml, measured on NVIDIA H200 for {WORKLOAD}; measured with "
        "Triton 3.7.1, and this machine has 3.8.0: unconfirmed, `tunefa verify` confirms it"
    )
    with (
        on_cpu(monkeypatch, triton="3.8.0", broken=frozenset({128})) as language,
        pytest.raises(TunefaError, match="that cannot be used: ptxas says no; install"),
    ):
        frozen_of(call(), language, marked)


@pytest.mark.parametrize(("made", "chip", "why"), UNSERVED)
def test_frozen_refuses_what_no_kernel_serves(made: Call, chip: Chip, why: str) -> None:
    with pytest.raises(TunefaError, match=f"{why}.*; a frozen process uses nothing else") as caught:
        frozen_of(made, FakeLanguage(), record(TMA), chip=chip)
    said = str(caught.value)
    assert said.startswith(
        "tunefa.lock.yaml, which this process is frozen to, does not serve this call with"
    )
    assert f"{made.q.dtype} on {chip.name}: " in said


# ------------------------------------------------------------------------------ the runtime


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock file of one record."""
    path = tmp_path / "tunefa.lock.yaml"
    store.write(path, [measured(SMALL, config=TMA)])
    return path


@pytest.mark.parametrize("by_environment", [True, False])
def test_frozen_serves_the_file_and_nothing_else(
    fresh: Runtime,
    language: FakeLanguage,
    lock: Path,
    by_environment: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Store([lock.parent / "results"]).add(measured(SMALL, config=DEFAULT, median_us=1.0))
    if by_environment:
        monkeypatch.setenv("TUNEFA_FROZEN", str(lock))
    else:
        assert fresh.plan(Tensors(*tensors()), Options(True)).chosen.config == DEFAULT
        tunefa.load(lock, frozen=True)
    chosen = fresh.plan(Tensors(*tensors()), Options(True)).chosen
    assert (chosen.how, chosen.config) == ("exact", TMA) and "frozen to" in chosen.why
    for _ in range(2):
        with pytest.raises(TunefaError, match=f"its nearest is for fwd_{SMALL} on NVIDIA H200"):
            fresh.plan(Tensors(*tensors(48)), Options(True))
    with pytest.raises(TunefaError, match="is loaded already: leave out this load"):
        tunefa.load(lock)
    assert fresh.plan(Tensors(*tensors()), Options(True)).chosen.config == TMA
    tunefa.flash_attention(*tensors())  # on the CPU there is no config to choose
    last = tunefa.last_choice()
    assert last is not None and last.how == "pytorch"


def test_a_scale_that_no_kernel_takes_is_an_error_when_frozen(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chip, "of", lambda device: H200)
    q: Any = SimpleNamespace(shape=(2, 4, 16, 32), device="cuda", is_cuda=True)
    for scale, why in ((-1.0, r"-1\.0 is not positive"), (1e-36, r"1e-36 is below 2\^-100")):
        call: Any = SimpleNamespace(q=q, scale=scale, options=Options(True))
        assert plan.plan_without_kernel(call, None).chosen.how == "pytorch"
        with pytest.raises(TunefaError, match=f"NVIDIA H200: scale {why}"):
            plan.plan_without_kernel(call, LockFile.read(lock))


CHILD = """
import torch, tunefa
from tunefa.runtime import process as runtime
from tests.support.fake_kernel import H200, FakeKernel, FakeLanguage
from tunefa.compile import languages
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.compiled import Compiler
languages.load = lambda name, made=FakeLanguage(): made
q, k = torch.randn(2, 16, 4, 32), torch.randn(2, 24, 2, 32)
tunefa.flash_attention(q, k, k)
made = runtime._RUNTIME
made.planner.devices[q.device] = (H200, Compiler())
made.planner.kernels = (FakeKernel(),)
print(made.plan(Tensors(q, k, k), Options(True)).chosen.config)
made.plan(Tensors(q, k, k), Options(False))
"""


@pytest.mark.parametrize("broken", [False, True])
def test_the_environment_variable_is_honoured(lock: Path, broken: bool) -> None:
    if broken:
        lock.write_text("tunefa_schema: 1\nrecords: [\n", encoding="utf-8")
    environment = {**os.environ, "TUNEFA_FROZEN": str(lock)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=TREE, env=environment, capture_output=True, text=True
    )
    error = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert done.stdout == ("" if broken else f"{TMA}\n")
    if broken:
        assert error.startswith(f"tunefa.errors.TunefaError: TUNEFA_FROZEN: {lock}:3: ")
    else:
        assert f"{lock}, which this process is frozen to, has no record measured" in error
        assert "_d32_fp32_full on NVIDIA H200: " in error
