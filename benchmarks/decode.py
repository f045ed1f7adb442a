"""Races attention over a cache with the libraries that are installed, on the GPU of this machine.

    python -m benchmarks.decode [--out FILE] [--batch 1 16 ...] [--keys 1024 ...] [--page-size N]
    python -m benchmarks.decode --from FILE        # prints the tables of a file

Of each point, `tunefa.decode_attention` and the peers run in turns, on the same tensors, as CUDA
graphs: a graph calls one of them on several caches, one after the other, which are larger than the
L2 cache together. A figure is the median of ROUNDS replays. tunefa runs with the config that its
runtime takes, and libraries are no candidates.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tunefa
from tunefa.measure import ops
from tunefa.runtime import process
from tunefa.spec.workload import Workload

HEADS = ((32, 8), (64, 8), (32, 4), (32, 32))
BATCHES, KEYS = (1, 4, 16, 64, 128), (1024, 4096, 16384, 32768, 131072)
ROUNDS, COLD_BYTES, MOST_BYTES, MOST_CACHES = 7, 400e6, 60e9, 32
Call = Callable[[int], Any]
Point = dict[str, Any]


def ours(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """tunefa, with the layout of the tensors that `ops` makes."""
    views = []
    for tensors in made:
        q, k, v, out, _, *more = tensors
        views.append(([x.transpose(1, 2) for x in (q, k, v)], out.transpose(1, 2), more))

    def call(number: int) -> None:
        (q, k, v), out, more = views[number]
        tunefa.decode_attention(q, k, v, *more, out=out)

    return call


def cudnn(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """PyTorch's cuDNN attention; all sequences have all keys."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(number: int) -> None:
        q, k, v = made[number][:3]
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=workload.group > 1)

    return call


def fa2(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """FlashAttention-2 of PyTorch, which splits keys by a rule of its own."""
    forward = torch.ops.aten._flash_attention_forward.default

    def call(number: int) -> None:
        q, k, v = (x.transpose(1, 2) for x in made[number][:3])
        forward(q, k, v, None, None, q.shape[1], k.shape[1], 0.0, False, False)

    return call


def fa3(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """FlashAttention-3 (fa3-fwd), which splits keys by a rule of its own."""
    library = importlib.import_module("fa3_fwd_interface")

    def call(number: int) -> None:
        q, k, v = (x.transpose(1, 2) for x in made[number][:3])
        library.flash_attn_func(q, k, v, causal=True, num_splits=0)

    return call


PEERS = {"cudnn": cudnn, "fa2": fa2, "fa3": fa3}


def captured(call: Call, caches: int) -> torch.cuda.CUDAGraph:
    """A graph that calls on one cache after the other."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(caches):
            call(number)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(caches):
            call(number)
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Device time of one replay."""
    start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def point(workload: Workload) -> Point:
    """The figures of one workload, by implementation."""
    own_bytes = workload.io_bytes
    caches = max(2, min(MOST_CACHES, math.ceil(COLD_BYTES / own_bytes)))
    made = [ops.of(workload).tensors(workload, "cuda", seed) for seed in range(caches)]
    calls = {"tunefa": ours(made, workload)}
    if workload.page_size is None:
        calls |= {name: peer(made, workload) for name, peer in PEERS.items()}
    us, failed = raced(calls, caches)
    chosen = tunefa.last_choice()
    assert chosen is not None
    return {
        "workload": str(workload),
        "us": us,
        "gb_per_s": {name: round(own_bytes / each / 1e3) for name, each in us.items()},
        "kernel": chosen.kernel,
        "config": chosen.config,
        "failed": failed,
    }


def raced(calls: Mapping[str, Call], caches: int) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the us of each call, and why others failed. A call has the number of a cache."""
    graphs, failed = {}, {}
    for name, call in calls.items():
        try:
            graphs[name] = captured(call, caches)
        except Exception as error:  # a peer that is not installed, or refuses
            if name == "tunefa":
                raise
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS + 1):
        for name, graph in graphs.items():
            found = replay_us(graph) / caches
            if turn:  # the first one warms up
                times[name].append(found)
    return {name: round(statistics.median(each), 2) for name, each in times.items()}, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=Path, dest="recorded")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument("--page-size", type=int)
    given = parser.parse_args()
    if given.recorded:
        points = json.loads(given.recorded.read_text(encoding="utf-8"))["points"]
    else:
        process.current().leave_out_libraries()
        points = measured(given.batch, given.keys, given.page_size)
    print(tables(points))
    if given.out:
        device = torch.cuda.get_device_name()
        found = {"device": device, "torch": torch.__version__, "points": points}
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(batches: Sequence[int], lengths: Sequence[int], page_size: int | None) -> list[Point]:
    """The figures of all points whose cache fits into MOST_BYTES."""
    points = []
    for (heads, heads_kv), batch, keys in itertools.product(HEADS, batches, lengths):
        workload = Workload.of(
            op="decode", batch=batch, heads=heads, heads_kv=heads_kv, seqlen_k=keys,
            page_size=page_size,
        )  # fmt: skip
        if workload.io_bytes > MOST_BYTES:
            continue
        points.append(point(workload))
        print(workload, points[-1]["us"], flush=True)
        torch.cuda.empty_cache()
    return points


def lead(found: Point) -> float | None:
    """The time of the best peer over tunefa's; None where no peer ran."""
    peers = [us for name, us in found["us"].items() if name != "tunefa"]
    return min(peers) / found["us"]["tunefa"] if peers else None


def tables(points: Sequence[Point]) -> str:
    """A table for each pair of heads: a row for each batch, and a column for each number of keys,
    with the time in us and, in parentheses, the lead. A sentence about all points ends it."""
    lines = []
    cells = {Workload.parse(each["workload"]): each for each in points}
    for heads, heads_kv in HEADS:
        own = {(w.batch, w.seqlen_k): each for w, each in cells.items()
               if (w.heads, w.heads_kv) == (heads, heads_kv)}  # fmt: skip
        if not own:
            continue
        batches, lengths = (sorted(set(each)) for each in zip(*own, strict=True))
        lines += ["", f"| {heads}/{heads_kv} | " + " | ".join(f"{n:,}" for n in lengths) + " |"]
        lines.append("| ---: |" + " ---: |" * len(lengths))
        for batch in batches:
            row = [cell(own.get((batch, keys))) for keys in lengths]
            lines.append(f"| b{batch} | " + " | ".join(row) + " |")
    leads = [each for each in map(lead, points) if each is not None]
    if leads:
        mean, wins = statistics.geometric_mean(leads), sum(each > 1 for each in leads)
        lines.append(
            f"\n{len(leads)} points, ahead at {wins}, mean {mean:.3f}, least {min(leads):.3f}"
        )
    return "\n".join(lines)


def cell(found: Point | None) -> str:
    """A cell of a table: the time, and the lead in parentheses; empty for no point."""
    if found is None:
        return ""
    over, us = lead(found), found["us"]["tunefa"]
    shown = f"{us:.1f}" if us < 1000 else f"{us:,.0f}"
    if over is None:
        return shown
    return f"**{shown}** ({over:.2f})" if over > 1 else f"{shown} ({over:.2f})"


if __name__ == "__main__":
    main()
