"""tunefa/compile/ascend/toolchain.py: which compiler there is, and which one is chosen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.compiler_index import COMPILER, made, run
from tunefa.compile.ascend import pins, toolchain
from tunefa.errors import TunefaError


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels in place of the index, for the Python that runs this."""
    folder = tmp_path / "index"
    folder.mkdir()
    front = [made(folder, each, f"{each.name}.py", "") for each in pins.FRONT_END_WHEELS]
    path = "ascendnpuir/bin/bishengir-compile"
    compilers = {v: made(folder, pins.compiler(v), path, COMPILER) for v in pins.COMPILERS}
    monkeypatch.setattr(pins, "FRONT_END_WHEELS", tuple(front))
    monkeypatch.setattr(pins, "_COMPILERS", compilers)
    monkeypatch.setattr(pins, "PYTHON", sys.version_info[:2])
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    yield folder


def test_a_compiler_that_is_there_is_taken(index: Path, tmp_path: Path) -> None:
    own = tmp_path / "bishengir-compile"
    own.write_text(COMPILER.replace("1.1.0", "1.3.0"))
    own.chmod(0o755)
    result = run("--compiler", str(own), "--python", sys.executable, "--json")
    assert json.loads(result.stdout)["compiler"].startswith("bishengir-compile 1.3.0")
    assert toolchain.installed().compiler == own
    assert "fetching triton-ascend 3.2.0 (54 MB)" in result.stderr
    own.unlink()
    with pytest.raises(TunefaError, match=f"{own} is missing: run 'tunefa ascend setup'"):
        toolchain.installed()


def test_a_compiler_of_another_kind_is_refused() -> None:
    result = run("--compiler", "/bin/true", code=1)
    assert "/bin/true is not a bishengir-compile" in result.output
    assert not toolchain.folder().exists()
