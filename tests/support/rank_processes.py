"""The processes of a job's ranks.

On the CPU they are forks of one process that has imported PyTorch, which takes seconds; it runs
nothing else. On GPUs each rank is a new process, as no fork can use CUDA after its parent.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.spawn import start_processes


def start(
    rank: Callable[..., None],
    arguments: tuple[Any, ...],
    ranks: int,
    device: str,
    imported: tuple[str, ...] = ("torch",),
) -> None:
    """Calls `rank(number, *arguments)` in each process; raises what one of them raises.

    `imported` has the modules that the forks share: PyTorch's alone, as each rank has its own
    environment, which those of tunefa read.
    """
    multiprocessing.set_forkserver_preload(list(imported))
    begin: Any = start_processes  # it has no types
    method = "forkserver" if device == "cpu" else "spawn"
    begin(rank, arguments, nprocs=ranks, start_method=method)
