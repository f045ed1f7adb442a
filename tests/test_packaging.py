"""The sdist and the wheel, installed into fresh environments and used from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.support.tree import TREE

pytestmark = pytest.mark.slow

DATA = ("kernels", "search_spaces", "results")
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info"
)


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command; what it wrote to standard error is in the failure."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder, by its path there; caches are left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def site_packages(home: Path) -> Path:
    """The folder that the environment at `home` installs packages to."""
    (folder,) = home.glob("lib/python*/site-packages")
    return folder.resolve()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built in a copy of the tree: building leaves files behind."""
    copy = tmp_path_factory.mktemp("sdist") / "tree"
    shutil.copytree(TREE, copy, ignore=NOT_SOURCE)
    build = "import setuptools.build_meta as b; b.build_sdist('dist')"
    run(sys.executable, "-c", build, cwd=copy)
    (built,) = (copy / "dist").glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist: one built in a tree keeps files deleted there."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder, sdist, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["sdist", "wheel"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with tunefa from the sdist or the wheel; all else, pip too, is this one's."""
    home = tmp_path_factory.mktemp(request.param) / "venv"
    venv.create(home, symlinks=True)
    site = site_packages(home)
    others = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (site / "others.pth").write_text("\n".join(others) + "\n", encoding="utf-8")
    pip = (home / "bin" / "python", "-m", "pip", "install", "--no-deps", "--no-build-isolation")
    # This environment may hold tunefa too: without the option pip would be content with that.
    run(*pip, "--ignore-installed", request.getfixturevalue(request.param), cwd=home)
    return home


def test_sdist_is_the_whole_tree(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "constraints.txt",
        "scripts/make_venv.py",
        "tests/test_packaging.py",
        "benchmarks/bakeoff/runs.py",
    } <= names
    assert any(name.endswith(".jsonl.xz") for name in names), "tests replay the landscapes"
    assert not {name for name in names if Path(name).suffix == ".pyc"}


def test_installed_package_is_the_tree(installed: Path) -> None:
    site = site_packages(installed)
    there = files(site / "tunefa")
    for name in DATA:
        assert files(site / "tunefa" / name) == files(TREE / name), name
        assert f"{name}/__init__.py" not in there
        assert not (site / name).exists(), f"{name} lies beside the package: it belongs inside"
    code = {path: content for path, content in there.items() if path.split("/")[0] not in DATA}
    missing = files(TREE / "tunefa").keys() - code.keys()
    assert not missing, f"add {sorted(missing)} to [tool.setuptools] of pyproject.toml"
    assert code == files(TREE / "tunefa")


def test_installed_package_works_from_another_folder(installed: Path, tmp_path: Path) -> None:
    assert "search" in run(installed / "bin" / "tunefa", "--help", cwd=tmp_path)
    ask = "from tunefa import assets; print(*map(assets.root, assets.FOLDERS), sep='\\n')"
    folders = run(installed / "bin" / "python", "-c", ask, cwd=tmp_path).splitlines()
    site = site_packages(installed)
    assert [Path(folder) for folder in folders] == [site / "tunefa" / name for name in DATA]
