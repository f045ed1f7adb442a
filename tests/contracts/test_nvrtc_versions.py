"""Each NVRTC takes other C++: kernels in it compile with the oldest that is supported.

All other tests have the newest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import TREE

OLDEST = "13.0.88"
PROGRAM = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # what is loaded already is what cuda-bindings take
from tunefa.compile import languages, nvrtc
from tunefa.spec import kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

for name in kernel.names():
    made = kernel.load(name)
    if made.language == "cuda":
        for text in ("q8192_d128_causal", "q500_k700_d80_full"):
            for target in map(Target.named, ("sm80", "sm90")):
                case = Case(made, Workload.parse(text), target)
                if case.why_not() is None:
                    resources = languages.load("cuda").compile(case, case.default()).resources
                    print(nvrtc.installed().version, name, case.arch.name, text, resources)
"""


@pytest.mark.slow
def test_kernels_in_cuda_compile_with_the_oldest(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    wheel = f"nvidia-cuda-nvrtc=={OLDEST}"
    subprocess.run([*install, "--target", tmp_path / "site", wheel], check=True)
    library = tmp_path / "site" / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, library],
        env={
            **os.environ,
            "PYTHONPATH": str(TREE),
            "TUNEFA_HOME": str(tmp_path / "home"),
            "LD_LIBRARY_PATH": str(library.parent),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) >= 6 and all(line.startswith("13.0") for line in lines), done.stdout
