"""Records landscapes. For a landscape every feasible config of a kernel is checked and screened,
and the best 16 race.

    python benchmarks/landscape.py fwd_b4_h16_q4096_k4096_d128_bf16_full [WORKLOAD ...]

Needs the GPU. A landscape is the compressed journal of such a search, in benchmarks/landscapes/.
`tunefa search --replay FILE` and `make bench-search` read it. If a run is interrupted, start it
again: it continues.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tunefa.compile.launch import driver
from tunefa.search import resume
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.request import Progress, Request
from tunefa.spec import kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store.results import Store

KERNEL = "attention_fwd_triton"
FOLDER = Path(__file__).resolve().parent / "landscapes"


def record(workload: Workload, folder: Path) -> Path:
    """Measures every config of a workload; returns the file of the landscape."""
    target = Target.named(driver.device(0).name)
    made = kernel.load(KERNEL)
    everything = len(Case(made, workload, target).feasible().configs)
    # In random order: neighbours in the list share a binary, and would compile it at the same time.
    budget = Budget(trials=everything)
    request = Request(
        workload, target, True, (made,), budget, strategy="random", finalists=16, mode="graph"
    )
    request = replace(request, resume=resume.find(request).path)
    start = time.monotonic()

    def report(progress: Progress) -> None:
        if progress.done % 200 == 0:
            elapsed = time.monotonic() - start
            print(f"{workload} {progress.done}/{everything} {elapsed:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as store:
        result = search.search(request, Store([Path(store)]), report)
    if result.interrupted:
        raise KeyboardInterrupt
    name = f"{target.device.name.lower().replace(' ', '-')}--{workload}.jsonl.xz"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(lzma.compress(result.journal.read_bytes(), preset=9))
    print(f"{workload} done in {time.monotonic() - start:.0f} s", flush=True)
    return folder / name


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print(record(Workload.parse(text), FOLDER))
