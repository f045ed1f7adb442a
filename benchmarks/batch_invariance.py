"""Times what it costs that a sequence gets the same bits in every batch, on this machine's GPU.

    python -m benchmarks.batch_invariance [--out FILE] [-w WORKLOAD ...] [--config CONFIG ...]
    python -m benchmarks.batch_invariance --from FILE    # prints the table of a file

`tunefa.decode_attention` takes one config for all batches and lengths. Here it runs beside CONFIGS,
configs with other splits, as a rule could choose them that knows the batch and the number of keys.
Of each point all run in turns on the same caches, as in `benchmarks.decode`: CUDA graphs, a cold
L2 cache, medians of nine replays in a random order. The fastest of them then runs beside tunefa in
a second race, whose figures count: the fastest of many is partly a lucky one. The cost is tunefa's
time over that of the best rule, minus 1. It is 0 where no config was faster in the first race.

The 20 points have all pairs of heads and batches, and each number of keys four times, but where the
cache would exceed MOST_BYTES: there the keys are fewer.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

import tunefa
from benchmarks import decode, decode_configs, point_files
from benchmarks.decode_configs import Changed
from benchmarks.graphs import calls_of_graph, raced
from benchmarks.point_files import Point
from tunefa.measure import ops
from tunefa.runtime import process
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

MOST_BYTES = 40e9
TRITON = "attention_decode_triton"
SHORT = "BLOCK_N=64,num_stages=6,COPIES_IN_FLIGHT=4,CTAS_PER_SM=1"
CONFIGS = (
    "SPLIT_COST=16",
    "LEAF_KEYS=256",
    "TREE_DEPTH=5",
    "CTAS_PER_SM=1,MOST_LEAVES=64,TREE_DEPTH=6",
    "CTAS_PER_SM=1,num_stages=4,COPIES_IN_FLIGHT=3",
    SHORT,
    f"{SHORT},LEAF_KEYS=64",
    "BLOCK_N=64,CTAS_PER_SM=2,TREE_DEPTH=5",
    f"{TRITON}:",
    f"{TRITON}:MIN_SPLIT_KEYS=128,MAX_SPLITS=128",
    f"{TRITON}:MIN_SPLIT_KEYS=1024,MAX_SPLITS=16",
)
"""The configs of rules that know the batch and the keys; of a sum's order and the number of its
splits each has its own."""


def workloads() -> list[Workload]:
    """The points: a Latin square of heads, batches and keys."""
    found = []
    for row, (heads, heads_kv) in enumerate(decode.HEADS):
        for column, batch in enumerate(decode.BATCHES):
            for place in range(row + column, -1, -1):
                keys = decode.KEYS[place % len(decode.KEYS)]
                made = Workload.of(
                    op="decode", batch=batch, heads=heads, heads_kv=heads_kv, seqlen_k=keys
                )
                if made.io_bytes <= MOST_BYTES:
                    break
            found.append(made)
    return found


def point(workload: Workload, configs: Sequence[Changed]) -> Point:
    """The figures of one workload: us of the first race, and of the second one if there is one."""
    caches = min(decode.MOST_CACHES, math.ceil(decode.COLD_BYTES / workload.io_bytes))
    made = [ops.of(workload).tensors(workload, "cuda", seed) for seed in range(caches)]
    makers = {"tunefa": partial(decode.ours, made, workload)}
    makers |= {str(each): partial(each.call, made, workload) for each in configs}
    calls = calls_of_graph(caches, workload.io_bytes)
    first, failed = raced(makers, caches, calls)
    best = min(first, key=lambda name: first[name])
    second: dict[str, float] = {}
    if best != "tunefa":
        second, _ = raced({name: makers[name] for name in ("tunefa", best)}, caches, calls)
    makers["tunefa"]()(0)
    chosen = tunefa.last_choice()
    assert chosen is not None
    return {
        "workload": str(workload),
        "first_us": first,
        "best": best,
        "us": second or {"tunefa": first["tunefa"]},
        "kernel": chosen.kernel,
        "config": chosen.config,
        "why": chosen.why,
        "failed": failed,
    }


def cost(found: Point) -> float:
    """tunefa's time over that of the best rule, minus 1; below 0 where only the first race had a
    faster one."""
    us = found["us"]
    return float(us["tunefa"] / us[found["best"]]) - 1.0


def table(points: Sequence[Point]) -> str:
    """A row for each point, and a sentence about all."""
    lines = ["| | tunefa, us | the best rule, us | its config | cost |",
             "| --- | ---: | ---: | --- | ---: |"]  # fmt: skip
    for each in points:
        w, us, best = Workload.parse(each["workload"]), each["us"], each["best"]
        mine = "the same" if best == "tunefa" else best
        lines.append(
            f"| {w.heads}/{w.heads_kv} b{w.batch}, {w.seqlen_k:,} | {us['tunefa']:.1f} "
            f"| {us[best]:.1f} | {mine} | {cost(each):.1%} |"
        )
    costs = [max(0.0, cost(each)) for each in points]
    beyond = sum(each > 0.05 for each in costs)
    lines.append(
        f"\n{len(points)} points: the cost is {statistics.fmean(costs):.1%} on average, "
        f"{max(costs):.1%} at most, and above 5 % at {beyond}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=Path, dest="recorded")
    parser.add_argument("-w", "--workload", type=Workload.parse, nargs="+", help="these alone")
    configs = [decode_configs.parsed(each) for each in CONFIGS]
    parser.add_argument("--config", type=decode_configs.parsed, nargs="+", default=configs)
    given = parser.parse_args()
    if given.recorded:
        print(table(point_files.read(given.recorded)))
        return
    for workload in given.workload or ():
        if workload.op != "decode" or workload.varlen:
            parser.error(f"{workload}: give workloads of the op decode, with equal lengths")
    print(table(measured(given.workload or workloads(), given.config, given.out)))


def measured(
    asked: Sequence[Workload], configs: Sequence[Changed], out: Path | None
) -> list[Point]:
    """The figures of workloads; they are written after each, so that a run that ends early leaves
    those it has."""
    process.current().leave_out_libraries()
    target = Target.named(torch.cuda.get_device_name())
    decode_configs.compile_all(configs, asked, target)
    points: list[Point] = []
    for workload in asked:
        points.append(point(workload, configs))
        print(workload, points[-1]["first_us"], points[-1]["us"], points[-1]["failed"], flush=True)
        point_files.write(out, points)
        torch.cuda.empty_cache()
    return points


if __name__ == "__main__":
    main()
