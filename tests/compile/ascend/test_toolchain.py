"""tunefa/compile/ascend/toolchain.py: which compiler there is, and which one is chosen."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.compiler_index import COMPILER, run
from tunefa.compile.ascend import toolchain
from tunefa.errors import TunefaError


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
