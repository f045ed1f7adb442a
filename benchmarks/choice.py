"""Compares the quick choice of families with the choice that is made anew, on random workloads of
the shipped records' families, on a machine without a GPU.

    python -m benchmarks.choice [WORKLOADS] [SEED]

About a third of the workloads are alone, the others in rows of lengths that grow by one, as a
server asks for them. The result is how often the configs agree, how much longer the quick one is
expected to take at most, and what both choices cost the host.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tunefa import assets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.compile.serving import Installed, UsableStore
from tunefa.costmodel.anchor import Anchor
from tunefa.runtime.chip import Chip
from tunefa.runtime.choose import Chooser
from tunefa.runtime.family import Family
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload
from tunefa.store import results
from tunefa.store.lookup import Choice

H200 = SeenDevice("NVIDIA H200", (9, 0), 132, 141 * 2**30)
HEADS = ((8, 8), (32, 8), (16, 16), (40, 8))
ROW = 20
"""Lengths of a row."""


@dataclass
class Compared:
    """The results of the comparison."""

    workloads: int = 0
    same: int = 0
    worst: float = 1.0
    """The largest ratio of the times that the quick choice and the other one are expected to
    take."""
    quick_us: list[float] = field(default_factory=list)
    anew_us: list[float] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Workloads with another config, the first ones."""


def families() -> list[Workload]:
    """One workload of each family of shipped records, with several numbers of heads."""
    store = results.Store([assets.root("results")])
    found = {
        replace(r.workload, batch=1, seqlen_q=4096, seqlen_k=4096, heads=heads, heads_kv=heads_kv)
        for r in store.records()
        for heads, heads_kv in HEADS
        if r.workload.op == "fwd" and not r.workload.varlen
    }
    return sorted(found, key=str)


def lengths(chance: random.Random) -> Iterator[dict[str, Any]]:
    """Yields random batches and lengths, alone or in rows."""

    def spread(least: int, most: int) -> int:
        return round(2 ** chance.uniform(math.log2(least), math.log2(most)))

    batch, rows, keys = spread(1, 64), spread(1, 16384), spread(16, 32768)
    kind = chance.choice(["prefill", "decode", "any"])
    rows = {"prefill": keys, "decode": 1, "any": rows}[kind]
    for more in range(ROW if chance.random() < 0.1 else 1):
        grown = rows if kind == "decode" else rows + more
        yield {"batch": batch, "seqlen_q": grown, "seqlen_k": keys + more}


def compare(count: int, seed: int) -> Compared:
    """Compares so many choices."""
    own = [kernel for kernel in kernels.usable() if kernel.op == "fwd"]
    target = Chip.of_seen(H200).target
    assert target is not None
    store = UsableStore(results.Store([assets.root("results")]), Installed(own))
    anew, chance, found = Chooser(store, target, own), random.Random(seed), Compared()
    firsts, known = families(), dict[Workload, Family]()
    while found.workloads < count:
        first = chance.choice(firsts)
        if first not in known:
            known[first] = Family(store, first, target, own)
            known[first].prepare()
        for asked in lengths(chance):
            _one(known[first], anew, replace(first, **asked), found)
    return found


def _one(family: Family, anew: Chooser, workload: Workload, found: Compared) -> None:
    start = time.perf_counter()
    quick = family.quick(workload)
    middle = time.perf_counter()
    choice = anew.choose(workload)
    found.quick_us.append((middle - start) * 1e6)
    found.anew_us.append((time.perf_counter() - middle) * 1e6)
    found.workloads += 1
    if (quick.kernel, quick.config) == (choice.kernel, choice.config):
        found.same += 1
        return
    found.others.append(f"{workload}: {quick.why} / {choice.why}")
    found.worst = max(found.worst, _ratio(anew, workload, quick, choice))


def _ratio(anew: Chooser, workload: Workload, quick: Choice, choice: Choice) -> float:
    ranked = anew.ranked(workload)
    anchor = Anchor.of(ranked, workload, anew.target, anew.kernels)
    times = (anchor.expected(each.kernel, each.config).time_us for each in (quick, choice))
    return next(times) / next(times)


def main() -> None:
    """Prints one JSON object."""
    count, seed = (int(text) for text in (*sys.argv[1:], "100000", "0")[:2])
    found = compare(count, seed)

    def spread(us: list[float]) -> dict[str, float]:
        cuts = statistics.quantiles(us, n=100)
        marks = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "mean": statistics.mean(us)}
        return {name: round(value, 1) for name, value in marks.items()}

    print(
        json.dumps(
            {
                "workloads": found.workloads,
                "same config": found.same / found.workloads,
                "largest ratio of expected times": found.worst,
                "quick us": spread(found.quick_us),
                "anew us": spread(found.anew_us),
                "others": found.others[:10],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
