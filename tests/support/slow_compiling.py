"""The work of the compilers' processes of tests.support.slow_compilers. It imports little: there
are many of them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from tunefa.spec.trial import Config, Outcome, Resources

QUICK, SLOW = "attention_fwd_cuda_sm80", "attention_bwd_cuda_sm90"
LATE = "attention_fwd_cuda_sm90"
"""A kernel of QUICK's workloads."""
COMPILE_S = {QUICK: 1.0, SLOW: 5.0, LATE: 8.0}


def compiled_slowly(
    names: tuple[str, str, str], config: Config, also: Any = None
) -> tuple[Outcome, Resources | None, float, str]:
    """Runs in a compiler's process. What was compiled is a file; each compilation is a line of the
    file `compiled` in the home."""
    text = json.dumps([names, sorted(config.items())])
    home = Path(os.environ["TUNEFA_HOME"])
    cached = home / "compiled-before" / hashlib.sha256(text.encode()).hexdigest()
    if not cached.exists():
        time.sleep(COMPILE_S[names[0]])
        cached.parent.mkdir(parents=True, exist_ok=True)
        with open(home / "compiled", "a") as file:
            file.write(text + "\n")
        cached.touch()
    return "ok", Resources(1024, 64, 0, 0), 0.1, ""


def import_nothing(language: str) -> None:
    """Runs in a compiler's process."""
