from __future__ import annotations

import subprocess
import sys

from tests.support.tree import TREE


def test_the_package_s_names_come_when_asked_for() -> None:
    code = """
import sys, tunefa
names = {"TunefaError", "Workload", "flash_attention", "last_choice", "load", "__version__"}
assert names <= set(dir(tunefa))
heavy = {"torch", "triton", "optuna", "numpy", "yaml"} & set(sys.modules)
assert not heavy, heavy
assert str(tunefa.Workload.of(seqlen_q=1)) and tunefa.__version__ and "torch" not in sys.modules
from tunefa.store import results as store
from tunefa.errors import TunefaError
assert tunefa.TunefaError is TunefaError
assert callable(tunefa.flash_attention) and "flash_attention" in vars(tunefa)
assert "optuna" not in sys.modules and "triton" not in sys.modules
try:
    tunefa.flash_attenton
except AttributeError as error:
    assert str(error) == "module 'tunefa' has no attribute 'flash_attenton'"
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
