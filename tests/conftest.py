"""What holds for every test: no user's store is touched, and no GPU is taken for granted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fake_objective import Fake
from tests.own_kernels import OwnKernels
from tunefa import assets, search, store


@pytest.fixture(autouse=True)
def home_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test has an empty store and journal folder, and processes it starts share them.

    In this process no results are shipped either: what there are changes with every release.
    """
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path_factory.mktemp("tunefa_home")))
    monkeypatch.delenv("TUNEFA_FROZEN", raising=False)
    folders = {"results": tmp_path_factory.mktemp("shipped")}
    monkeypatch.setattr(
        store,
        "assets",
        SimpleNamespace(home=assets.home, root=lambda name: folders.get(name) or assets.root(name)),
    )


@pytest.fixture
def own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnKernels:
    """Data folders of this test's own in place of tunefa's; kernels are put there by the test."""
    return OwnKernels(tmp_path / "data", monkeypatch)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """A class of this test's own, in place of the objective that compiles."""

    class OwnFake(Fake):
        pass

    monkeypatch.setattr(search, "Predicted", OwnFake)
    return OwnFake


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs an NVIDIA GPU, and torch.cuda sees none")
