"""Lets all ranks of a job run the same configs: the first rank's records go to the others, once.

Nothing here happens inside of a call of attention: a rank that computes no attention would keep the
others waiting.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tunefa.errors import TunefaError
from tunefa.runtime import config_hash as config_hashes
from tunefa.runtime import process
from tunefa.store.record import Record


def config_hash() -> str:
    """Returns 16 hexadecimal digits that are equal in processes that run equal configs.

    It covers the records that this process uses, its lock file and bundles, the sources of kernels,
    the versions of compilers and libraries, and the latency model; not the device. `tunefa doctor`
    prints it too.

    Raises TunefaError if the lock file cannot be read.
    """
    return config_hashes.digest(_parts())


def _parts() -> dict[str, str]:
    planner = process.current().planner
    with planner.lock:
        return planner.config_parts()


def share_records(group: Any = None) -> str:
    """Gives all ranks of a process group the records of its first rank, and returns the hash that
    all of them have then, see `config_hash`.

    Call it on every rank of `group` (by default of the whole job) after
    torch.distributed.init_process_group and before the first step. From then on no rank reads
    records from its disk. In a frozen process it only compares the hashes.

    Raises TunefaError, on all ranks, if they would run different configs all the same: their kernel
    sources, compilers, libraries, lock files or bundles differ. Also where there is no group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise TunefaError(
            "there are no ranks to share records with: call "
            "torch.distributed.init_process_group first"
        )
    runtime = process.current()
    first = 0 if group is None else dist.get_global_rank(group, 0)
    sent: list[Any] = [None]
    if dist.get_rank() == first:
        sent = [[record.to_dict() for record in runtime.planner.records.records()]]
    dist.broadcast_object_list(sent, src=first, group=group)
    if runtime.planner.freeze.file is None:
        runtime.use_only([Record.from_dict(each, "a record of rank 0") for each in sent[0]])
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, _parts(), group=group)
    _check(parts)
    return config_hash()


def _check(parts: list[dict[str, str]]) -> None:
    """Raises TunefaError if the parts of the ranks' hashes differ."""
    for rank, own in enumerate(parts):
        names = [name for name in {**parts[0], **own} if own.get(name) != parts[0].get(name)]
        if names:
            said = "; ".join(
                f"{name}: {own.get(name, 'none')} there, {parts[0].get(name, 'none')} on rank 0"
                for name in names[:3]
            )
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise TunefaError(
                f"rank {rank} would run other configs than rank 0: {said}{more}; install the same "
                "tunefa, compilers and libraries on every rank, and load the same files"
            )
