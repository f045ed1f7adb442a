"""Two ranks of a job with stores of their own: what they agree on, and what they refuse.

`run` starts them; on the CPU the backend is gloo, on GPUs it is NCCL.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import tunefa
from tests.support import rank_processes
from tunefa.errors import TunefaError
from tunefa.runtime import process
from tunefa.store import results as store
from tunefa.store.record import Record

WORLD = 2


def run(device: str, records: list[list[dict[str, Any]]], files: list[str]) -> list[dict[str, Any]]:
    """The data that each rank saw. A rank has the records of the list at its place in its store,
    and loads the file at its place, frozen where its name has `lock` in it; "" for none."""
    with tempfile.TemporaryDirectory() as folder:
        rank_processes.start(_rank, (device, folder, records, files), WORLD, device)
        found = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(WORLD)]
    return found


def _rank(
    rank: int, device: str, folder: str, records: list[list[dict[str, Any]]], files: list[str]
) -> None:
    os.environ["TUNEFA_HOME"] = str(Path(folder) / f"home{rank}")
    for each in records[rank]:
        store.default_store().add(Record.from_dict(each))
    if files[rank]:
        tunefa.load(files[rank], frozen="lock" in files[rank])
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/meeting", world_size=WORLD, rank=rank,
        timeout=datetime.timedelta(seconds=120),
    )  # fmt: skip
    seen: dict[str, Any] = {"before": tunefa.config_hash(), "error": ""}
    try:
        seen["shared"] = tunefa.share_records()
    except TunefaError as error:
        seen["error"] = str(error)
    seen["after"] = tunefa.config_hash()
    planner = process.current().planner
    seen["own"] = [str(each.workload) for each in planner.records.loaded]
    if device == "cuda":
        q = torch.zeros(1, 512, 4, 64, device="cuda", dtype=torch.bfloat16)
        tunefa.flash_attention(q, q, q, causal=True)
        chosen = tunefa.last_choice()
        assert chosen is not None
        seen["chosen"] = (chosen.kernel, chosen.config)
    torch.save(seen, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
