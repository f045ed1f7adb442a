"""Gluon changes with every Triton: its kernels compile with the oldest and the newest supported.

They are installed and compile anew, which takes minutes: `make test-triton-versions` does it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import TREE

PROGRAM = """
import triton
from tunefa.compile import languages
from tunefa.spec import kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

for name in kernel.names():
    made = kernel.load(name)
    if made.language == "gluon":
        texts = ["q500_k700_h32_kv8_d40_causal"]
        if made.op == "fwd":  # in two pieces of columns; others in one, which compiles fastest
            texts = ["q500_k700_h32_kv8_d80_causal", "q8192_d64_e4m3_full", "b4_q900_d64_varlen"]
        for text in texts:
            case = Case(made, Workload.parse(f"{made.op}_{text}"), Target.named("sm90"))
            resources = languages.load("gluon").compile(case, case.default()).resources
            assert resources.smem_bytes <= case.arch.smem_per_block_bytes, resources
            print(triton.__version__, name, text, resources)
"""


@pytest.mark.versions
@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.6.0", "3.9.0"])
def test_gluon_kernels_compile_with(version: str, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*install, "--target", folder, f"triton=={version}"], check=True)
    paths = os.pathsep.join([str(folder), str(TREE)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all(line.startswith(version) for line in lines), done.stdout
