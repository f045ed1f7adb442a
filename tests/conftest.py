"""Fixtures for every test: no user's store is touched, and no GPU is taken for granted."""

from __future__ import annotations

import gc
import itertools
import math
import os
import signal
import tempfile

# Before numpy and torch are imported: on small matrices, threads wait for each other more than they
# compute (Optuna's Gaussian process took ten times as long on two busy cores).
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each core compiles a kernel of its own: threads of Triton's compiler would share it.
os.environ.setdefault("MLIR_DISABLE_MULTITHREADING", "1")
# Inductor would start processes that import torch, and compile headers for each new cache.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
# Nor has g++ to compile a program for each vector extension of this CPU, to see that it can.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import cuda_on_cpu, remembered_estimates
from tests.support.clock import Clock
from tests.support.fake_device import Device, FakeStopwatch, InProcess, Unwatched
from tests.support.fake_kernel import H200, FakeKernel, FakeLanguage, is_aligned, on_cpu
from tests.support.fake_objective import Fake
from tests.support.own_kernels import OwnKernels
from tests.support.predicted_case import KERNEL, TARGET, WORKLOAD
from tunefa.compile import languages
from tunefa.measure import check, racing, timing
from tunefa.measure.measured import Measured
from tunefa.runtime import process as runtime
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.process import Runtime
from tunefa.search import opening, proposer
from tunefa.search import run as search
from tunefa.spec.target import Case
from tunefa.store import results as store

LONG = frozenset({"test_run_killed.py", "test_worker_turns.py"})
"""Files that take half a minute and more in real time, though no test of them compiles."""

CACHED = frozenset({"test_bwd_two_pass_sm90.py", "test_decode_mla.py", "test_decode_prefix.py"})
"""Files that compile some configs which tests/contracts/test_kernels.py compiles too."""


@pytest.fixture(scope="session")
def new_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths of folders that are not there yet. pytest would look through all folders of the session
    for each new one, which takes 5 ms where thousands of tests have some."""
    return map(tmp_path_factory.mktemp("folders").joinpath, map(str, itertools.count()))


@pytest.fixture(autouse=True)
def home_of_its_own(new_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has an empty store and journal folder, and processes it starts share them.

    In this process no results are shipped either: what there are changes with every release.
    """
    home, shipped = next(new_folders), next(new_folders)
    home.mkdir()
    shipped.mkdir()
    monkeypatch.setenv("TUNEFA_HOME", str(home))
    monkeypatch.delenv("TUNEFA_FROZEN", raising=False)
    monkeypatch.setattr(store, "shipped_root", lambda: shipped)


@pytest.fixture(autouse=True)
def same_inputs_in_every_run() -> None:
    """Rounding errors depend on the inputs: a test must not fail in one run of hundreds."""
    torch.manual_seed(0)


@pytest.fixture
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips waits for the disk, which would take most of the time of a search of made-up times.

    No file of such a test must survive a power failure, and Optuna waits for the disk a dozen times
    a trial.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of this process until the test ends; only the test moves it."""
    return Clock().drive(monkeypatch)


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """Makes SIGINT raise, in child processes too: a shell's background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnKernels:
    """Data folders of this test's own in place of tunefa's; kernels are put there by the test."""
    return OwnKernels(tmp_path / "data", monkeypatch)


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches in this process share what they know before the first trial with earlier tests."""
    remembered_estimates.remember(monkeypatch)


@pytest.fixture
def fake(
    monkeypatch: pytest.MonkeyPatch, no_waiting_for_the_disk: None, remembered: None
) -> type[Fake]:
    """A class of this test's own, in place of the objective that compiles.

    Its times are no model's, so they are not compared with those of configs that are known.
    """

    class OwnFake(Fake):
        pass

    monkeypatch.setattr(search, "Predicted", OwnFake)
    monkeypatch.setattr(proposer, "_known_us", lambda state, part: math.inf)
    monkeypatch.setattr(opening, "warm_up", lambda *_: None)
    return OwnFake


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runtime:
    """A runtime of its own behind the public functions, and a user's store of its own."""
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    made = Runtime()
    monkeypatch.setattr(runtime, "_RUNTIME", made)
    return made


@pytest.fixture
def language(fresh: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLanguage]:
    """CPU tensors pass for those of an H200 with one fake kernel, in `fresh.plan`."""
    fake: Any = FakeKernel()
    fresh.planner.devices[torch.device("cpu")] = (H200, Compiler())
    fresh.planner.kernels = (fake,)
    with on_cpu(monkeypatch) as made:
        yield made


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device of every bench that is made in this process."""
    fake = Device()
    on_cpu = check.tensors
    monkeypatch.setattr(languages, "load", lambda name: fake)
    monkeypatch.setattr(timing, "Stopwatch", FakeStopwatch)
    monkeypatch.setattr(check, "tensors", lambda w, _, seed=None: on_cpu(w, "cpu", seed))
    monkeypatch.setattr(racing, "Monitor", Unwatched)
    return fake


@pytest.fixture
def measured(device: Device) -> Iterator[Measured]:
    """An objective whose bench is in this process, on `device`."""
    kernel: Any = SimpleNamespace(
        name="fake",
        language="fake",
        is_library=False,
        module=SimpleNamespace(is_aligned=is_aligned),
        space=KERNEL.space,
    )
    objective = InProcess(Case(kernel, WORKLOAD, TARGET), 1)
    with objective:
        yield objective


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder in which the processes of this test run share what they compile for the CPU;
    the workers of xdist have it in their environment."""
    if cuda_on_cpu.SHARED not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="tunefa-cuda-on-cpu-")
        os.environ[cuda_on_cpu.SHARED] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(partial(os.environ.__delitem__, cuda_on_cpu.SHARED))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps Python's cyclic garbage collector away from what is imported and stays: thousands of
    tests, and PyTorch. Each of its runs would look through that, now and in each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files with slow tests first: one of them at the end would leave other workers idle.

    Those that compile what tests/contracts does keep their place: by then Triton's cache has it.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    first = {item.path for item in items if item.path in slow or item.path.name in LONG}
    items.sort(key=lambda item: item.path not in first or item.path.name in CACHED)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Processes of `pytest -n auto`: none but this one where there is a GPU, which tests time."""
    return 0 if torch.cuda.is_available() else min(4, os.cpu_count() or 1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a GPU where there is none, and other Tritons unless `-m` speaks of them."""
    if item.get_closest_marker("versions") and "versions" not in item.config.option.markexpr:
        pytest.skip("installs other versions of Triton: make test-triton-versions")
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU, and torch.cuda sees none")
