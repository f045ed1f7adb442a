"""The pass that `tunefa.activate` sets, which reads the user's store when a graph is compiled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._inductor import config

import tunefa
from tests.support.flex_on_cpu import H200, calls
from tests.support.sample_records import measured
from tests.support.tree import TREE
from tunefa.integrations import flex_calls, flex_kernels, flex_later, flex_pass, flex_tuned
from tunefa.integrations.flex_calls import FlexCall
from tunefa.spec.target import Case
from tunefa.store.record import Record
from tunefa.store.results import Store


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A user without records."""
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    monkeypatch.setattr(flex_tuned, "_target", lambda call: H200)
    yield
    tunefa.deactivate()
    flex_pass.end()


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> FlexCall:
    return calls(monkeypatch)[0]


def added(call: FlexCall, home: Path) -> Record:
    """A record of the call's functions, in the user's store."""
    workload = flex_calls.workload_of(call)
    assert workload is not None
    kernel = flex_kernels.kernel_of(call)
    (chosen, *_) = Case(kernel, workload, H200).feasible().configs
    made = measured(str(workload), kernel=kernel.name, config=chosen)
    Store([home / "results"]).add(made)
    return made


def test_activate_sets_it_for_a_user_with_records(forward: FlexCall, tmp_path: Path) -> None:
    tunefa.activate()
    assert config.post_grad_custom_pre_pass is None
    tunefa.deactivate()
    record = added(forward, tmp_path)
    tunefa.activate()
    active = config.post_grad_custom_pre_pass
    assert isinstance(active, flex_later.LaterOptions) and active.earlier is None
    choice = active.tuned.choice(forward)
    assert choice is not None and choice.config == record.config
    assert active.uuid() == flex_tuned.TunedOptions(Store([tmp_path / "results"])).uuid()
    assert flex_tuned.last_choices() == {}
    tunefa.deactivate()
    assert config.post_grad_custom_pre_pass is None


def test_use_records_takes_its_place(forward: FlexCall, tmp_path: Path) -> None:
    added(forward, tmp_path)
    flex_later.begin()
    flex_later.begin()
    assert flex_tuned.use(Store([tmp_path / "results"])) == 1
    active = config.post_grad_custom_pre_pass
    assert isinstance(active, flex_tuned.TunedOptions) and active.earlier is None


def test_it_imports_no_runtime() -> None:
    code = (
        "import sys, tunefa.integrations.flex_later as later; later.begin(); "
        "print(*[m for m in sys.modules if m.startswith('tunefa.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TREE, check=True, text=True, capture_output=True
    )
    assert not [name for name in done.stdout.split() if "runtime" in name or "measure" in name]
