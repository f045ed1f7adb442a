"""Contestants that take their process with them, for tests of comparisons."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence

import torch

from tunefa.experiments.compare import contestants
from tunefa.measure.contest import Maker
from tunefa.measure.peer import Call, Tensors
from tunefa.spec.workload import Workload


def dies(workload: Workload, tensors: Tensors) -> Call:
    """Ends the process as a segmentation fault does."""
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("the process lives on")


def ruins(workload: Workload, tensors: Tensors) -> Call:
    """Fails an assertion on the CUDA device, which then answers no more."""
    outside = torch.full((1,), 5, device=tensors[0].device)
    return lambda: tensors[0].flatten()[:1].index_select(0, outside).cpu()


def leaves(workload: Workload, tensors: Tensors) -> Call:
    """Ends the process without a word."""
    os._exit(7)


def hangs(workload: Workload, tensors: Tensors) -> Call:
    """Never returns."""
    while True:
        time.sleep(1.0)


OF_NAMES = {"hangs": hangs, "dies": dies, "ruins": ruins, "leaves": leaves}


def with_them(names: Sequence[str], kernel: str | None) -> Mapping[str, Maker]:
    """Returns these contestants for their names, and tunefa's and its peers' for others."""
    known = contestants([name for name in names if name not in OF_NAMES], kernel)
    return {name: OF_NAMES.get(name) or known[name] for name in names}
