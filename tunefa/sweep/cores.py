"""The cores of a host, shared by the workers of a sweep.

A GPU that is timed or raced needs a core that nothing else runs on: a launch that waits for its
core makes times noisy. So each GPU has up to three cores of its own, for its searches and bench.
All others are for compilers, of whichever GPU: their processes may run on any of them, and the
system shares these out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

_OWN = 3
"""The cores of a GPU where there are many: for its bench, for CUDA's threads beside it, and for the
searches that prepare while another one races."""
_MANY = 12
"""So many cores for each GPU are many."""
_COMPILERS_SHARE = 2
"""The compilers of a GPU are up to so many times its share of their cores: it uses those that the
compilers of other GPUs leave idle."""


@dataclass(frozen=True)
class Share:
    """The cores of one worker."""

    own: frozenset[int] = frozenset()
    """The cores that no other process of the sweep runs on; none stands for all."""
    compilers: frozenset[int] = frozenset()
    """The cores that its compilers run on; none stands for all."""
    processes: int = 1
    """The number of compilers that it may have."""


def available() -> list[int]:
    """Returns the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def of_gpu(number: str, gpus: int, limit: int | None) -> Share:
    """Returns the cores of one of the `gpus` of this host for a worker that knows no others:
    `number` says which, from 0. Another text says nothing, and gives it no cores of its own.
    `limit` is the most processes that compile on the host."""
    there = available()
    if number.isdigit() and int(number) < gpus:
        return shares(gpus, there, True, limit)[int(number)]
    most = len(there) if limit is None else limit
    return Share(processes=max(1, most // max(1, gpus)))


def are_ours() -> bool:
    """Returns whether this process is a job of Slurm that has cores of its own: a part of those of
    the host."""
    return "SLURM_JOB_ID" in os.environ and len(available()) < (os.cpu_count() or 1)


def shares(workers: int, cores: Sequence[int], measured: bool, limit: int | None) -> list[Share]:
    """Returns the cores of each worker. `limit` is the most processes that compile in all.

    Where nothing is measured, or there are fewer than two cores for each worker, none has cores of
    its own.
    """
    own = min(2, len(cores) // (2 * workers)) if measured else 0
    own = _OWN if measured and len(cores) >= _MANY * workers else own
    rest = list(cores[own * workers :])
    most = len(rest) if limit is None else limit
    if not measured:
        each, more = divmod(most, workers)
        return [Share(processes=max(1, each + (place < more))) for place in range(workers)]
    processes = max(1, min(most, -(-_COMPILERS_SHARE * most // workers)))
    free = frozenset(rest) if own else frozenset()
    return [
        Share(frozenset(cores[own * place : own * (place + 1)]), free, processes)
        for place in range(workers)
    ]
