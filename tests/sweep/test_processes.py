"""tunefa/sweep/processes.py: what a worker that measures has."""

from __future__ import annotations

import pytest

from tests.support import slow_compilers
from tunefa.sweep import processes
from tunefa.sweep.cores import Share
from tunefa.sweep.seat import Seat


def seat(share: Share, measured: bool = True) -> Seat:
    return Seat("", "", "GPU 0", share, measured=measured)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_compilers.install(monkeypatch.setattr)


def test_nothing_is_started_where_nothing_is_measured() -> None:
    with processes.started(seat(slow_compilers.share(), measured=False)) as found:
        assert found is None


def test_models_have_processes_where_compilers_have_cores() -> None:
    for share, count in ((slow_compilers.share(), 3), (Share(processes=2), 0)):
        with processes.started(seat(share)) as found:
            assert found is not None and len(found.models) == count
            assert found.compilers.count == share.processes and found.bench.count == 1
            assert found.compilers.apart == bool(count)


def test_its_processes_load_what_they_need() -> None:
    with processes.started(seat(slow_compilers.share())) as found:
        assert found is not None
        modules = "tunefa.search.model_process"
        for each in found.models:
            assert each.submit(is_loaded, (modules,), 60.0).result()
        assert found.bench.submit(is_loaded, ("tunefa.measure.measured",), 60.0).result()


def is_loaded(module: str) -> bool:
    import sys

    return module in sys.modules
