"""The data folders are found wherever the package lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefa import assets
from tunefa.errors import TunefaError


def lay(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    """Makes `assets` believe that it lies in `package`."""
    package.mkdir(parents=True)
    monkeypatch.setattr(assets, "__file__", str(package / "assets.py"))


@pytest.mark.parametrize("name", assets.FOLDERS)
def test_folder_of_this_tunefa_has_files_and_is_no_package(name: str) -> None:
    folder = assets.root(name)
    assert folder.name == name
    assert any(folder.iterdir())
    assert not list(folder.rglob("__init__.py"))


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"'kernel'.*kernels, search_spaces, results"):
        assets.root("kernel")


def test_installed_package_has_its_folders_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lay(monkeypatch, tmp_path / "site-packages" / "tunefa")
    (tmp_path / "site-packages" / "tunefa" / "kernels").mkdir()
    (tmp_path / "site-packages" / "kernels").mkdir()
    assert assets.root("kernels") == tmp_path / "site-packages" / "tunefa" / "kernels"


def test_tree_has_its_folders_beside_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lay(monkeypatch, tmp_path / "tunefa")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "results").mkdir()
    assert assets.root("results") == tmp_path / "results"


def test_folder_of_another_project_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lay(monkeypatch, tmp_path / "site-packages" / "tunefa")
    (tmp_path / "site-packages" / "kernels").mkdir()
    with pytest.raises(TunefaError, match="install tunefa again"):
        assets.root("kernels")
