"""Races attention over a cache with the libraries that are installed, on the GPU of this machine.

    python -m benchmarks.decode [--out FILE] [--batch 1 16 ...] [--keys 1024 ...] [--page-size N]
                                [--e4m3-cache] [--beside-pages 16 64] [-w WORKLOAD ...]
                                [--config TREE_DEPTH=3,SPLIT_COST=16 ...]
    python -m benchmarks.decode --in-step          # what a call adds to a captured step
    python -m benchmarks.decode --mla --page-size 64 [--batch-variant]   # latent attention
    python -m benchmarks.decode --from FILE        # prints the tables of a file

Of each point, `tunefa.decode_attention` and the peers run in turns, on the same tensors, as CUDA
graphs: a graph calls one of them on several caches, one after the other, which are many times as
large as the L2 cache together: what a call before has left there is at most 2 % of what is read. It
has eight calls or more, or as many as read 16 GB, since its own start takes 6 us.
Graphs are replayed in another random order in each round, and a figure is the median of them.
tunefa runs with the config that its runtime takes, and libraries are no candidates; with
--batch-variant, bits may follow the batch, as those of FlashInfer do. Each --config
is raced too: the default of attention_decode_cuda_sm90 with these parameters changed, or that of
another kernel, as in `attention_decode_triton:MAX_SPLITS=16`; `KERNEL:` is its default. With
--in-step, a product with a weight of 32 MiB and a kernel that writes the queries stand before each
call of a graph, and its figure is what it adds to a graph of these two. With
--beside-pages tunefa also reads the same memory as pages of these sizes, in a random order over all
sequences; with --page-size FlashInfer is a peer. Bytes are those of the cache read once, of the
queries and of the output.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tunefa
from benchmarks import decode_configs, point_files
from benchmarks.decode_configs import Changed
from benchmarks.decode_peers import ALL_PEERS, peers_of
from benchmarks.graphs import Call, Layer, calls_of_graph, raced
from benchmarks.point_files import Point
from tunefa.measure import ops
from tunefa.runtime import process
from tunefa.spec.workload import Workload

HEADS = ((32, 8), (64, 8), (32, 4), (32, 32))
BATCHES, KEYS = (1, 4, 16, 64, 128), (1024, 4096, 16384, 32768, 131072)
MLA_HEADS = ((16, 1), (128, 1))
MLA_BATCHES, MLA_KEYS = (1, 16, 64, 128), (1024, 2048, 4096, 8192, 16384, 32768)
COLD_BYTES, MOST_BYTES, MOST_CACHES = 3e9, 80e9, 500


def ours(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """tunefa, with the layout of the tensors that `ops` makes."""
    return called(laid_out(made, workload))


def laid_out(made: Sequence[tuple[Any, ...]], workload: Workload) -> list[Any]:
    """Returns for each cache (q, k, v, out) with heads behind rows, then the lengths with the block
    table if there is one, and the call's options."""
    views = []
    for tensors in made:
        q, k, v, out, _, *more = tensors
        options = {"k_descale": more[-2], "v_descale": more[-1]} if workload.e4m3cache else {}
        if workload.batchvariant:
            options["batch_invariant"] = False
        lengths = more[: 1 + (workload.page_size is not None)]
        views.append((*(x.transpose(1, 2) for x in (q, k, v, out)), lengths, options))
    return views


def called(views: Sequence[Any]) -> Call:
    """Calls tunefa on what `laid_out` returns."""

    def call(number: int) -> None:
        q, k, v, out, lengths, options = views[number]
        tunefa.decode_attention(q, k, v, *lengths, out=out, **options)

    return call


def paged(page_size: int, made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """tunefa over pages that are parts of a contiguous cache, in a random order over all sequences.
    Raises ValueError where the keys are no whole pages."""
    if workload.page_size or workload.seqlen_k % page_size:
        raise ValueError(f"{workload} has no whole pages of {page_size}, or has pages already")
    views = []
    for q, k, v, out, lengths, options in laid_out(made, workload):
        pages = [each.view(-1, page_size, *each.shape[2:]) for each in (k, v)]
        numbers = torch.randperm(len(pages[0]), device=q.device).int()
        views.append((q, *pages, out, [*lengths, numbers.view(workload.batch, -1)], options))
    return called(views)


def point(
    workload: Workload,
    configs: Sequence[Changed] = (),
    pages: Sequence[int] = (),
    in_step: bool = False,
) -> Point:
    """The figures of one workload, by implementation."""
    own_bytes = workload.io_bytes
    caches = min(MOST_CACHES, math.ceil(COLD_BYTES / own_bytes))
    made = [ops.of(workload).tensors(workload, "cuda", seed) for seed in range(caches)]
    makers = {"tunefa": ours, **peers_of(workload)}
    makers |= {f"page{size}": partial(paged, size) for size in pages}
    makers |= {str(each): each.call for each in configs}
    bound = {name: partial(each, made, workload) for name, each in makers.items()}
    layer = Layer([tensors[0] for tensors in made]) if in_step else None
    us, failed = raced(bound, caches, calls_of_graph(caches, own_bytes), layer)
    bound["tunefa"]()(0)
    chosen = tunefa.last_choice()
    assert chosen is not None
    return {
        "workload": str(workload),
        "us": us,
        "gb_per_s": {name: round(own_bytes / each / 1e3) for name, each in us.items()},
        "tflops": {name: round(workload.flops / each / 1e6, 1) for name, each in us.items()},
        "kernel": chosen.kernel,
        "config": chosen.config,
        "failed": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=Path, dest="recorded")
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--keys", type=int, nargs="+")
    parser.add_argument("--heads", type=int, nargs="+", help="query heads, with --mla")
    parser.add_argument("--page-size", type=int)
    parser.add_argument("--e4m3-cache", action="store_true")
    parser.add_argument("--beside-pages", type=int, nargs="+", default=[])
    parser.add_argument("-w", "--workload", type=Workload.parse, nargs="+", help="these alone")
    parser.add_argument("--config", type=decode_configs.parsed, nargs="+")
    parser.add_argument("--in-step", action="store_true", help="between the kernels of a layer")
    parser.add_argument("--mla", action="store_true", help="multi-head latent attention")
    parser.add_argument("--batch-variant", action="store_true", help="batch_invariant=False")
    given = parser.parse_args()
    if given.recorded:
        points = point_files.read(given.recorded)
    else:
        process.current().leave_out_libraries()
        points = measured(given)
    print(tables(points))
    point_files.write(given.out, points)


def measured(given: argparse.Namespace) -> list[Point]:
    """The figures of all points whose cache fits into MOST_BYTES."""
    points = []
    for workload in given.workload or workloads(given):
        if workload.io_bytes > MOST_BYTES:
            continue
        found = point(workload, given.config or (), given.beside_pages, given.in_step)
        points.append(found)
        rates = {name: (found["gb_per_s"][name], found["tflops"][name]) for name in found["us"]}
        print(workload, found["us"], "GB/s and TFLOP/s", rates, found["failed"], flush=True)
        torch.cuda.empty_cache()
    return points


def workloads(given: argparse.Namespace) -> list[Workload]:
    """The workloads of all heads, batches and lengths that are asked for."""
    heads: tuple[tuple[int, int], ...] = MLA_HEADS if given.mla else HEADS
    if given.mla and given.heads:
        heads = tuple((each, 1) for each in given.heads)
    batches = given.batch or (MLA_BATCHES if given.mla else BATCHES)
    lengths = given.keys or (MLA_KEYS if given.mla else KEYS)
    return [
        Workload.of(
            op="decode", batch=batch, heads=of_q, heads_kv=of_kv, seqlen_k=keys,
            page_size=given.page_size, mla=given.mla or None, e4m3cache=given.e4m3_cache,
            batchvariant=given.batch_variant,
        )
        for (of_q, of_kv), batch, keys in itertools.product(heads, batches, lengths)
    ]  # fmt: skip


def lead(found: Point, of: str = "tunefa") -> float | None:
    """The time of the best peer over tunefa's, or that of a config; None where no peer ran."""
    peers = [us for name, us in found["us"].items() if name in ALL_PEERS]
    return min(peers) / found["us"][of] if peers and of in found["us"] else None


def tables(points: Sequence[Point]) -> str:
    """A table for each pair of heads: a row for each batch, and a column for each number of keys,
    with the time in us and, in parentheses, the lead; of latent attention with TB/s and TFLOP/s. A
    sentence about all points ends it."""
    lines = []
    cells = {Workload.parse(each["workload"]): each for each in points}
    for heads, heads_kv in sorted({(w.heads, w.heads_kv) for w in cells}):
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
    names = dict.fromkeys(name for each in points for name in each["us"] if name not in ALL_PEERS)
    for name in names:
        leads = [each for found in points if (each := lead(found, name)) is not None]
        if leads:
            mean, wins = statistics.geometric_mean(leads), sum(each > 1 for each in leads)
            lines.append(
                f"\n{name}: {len(leads)} points, ahead at {wins}, mean {mean:.3f}, "
                f"least {min(leads):.3f}"
            )
        rates = [found["us"]["tunefa"] / found["us"][name] for found in points
                 if name.startswith("page") and name in found["us"]]  # fmt: skip
        if rates:
            lines.append(
                f"\n{name} over contiguous: {len(rates)} points, mean "
                f"{statistics.geometric_mean(rates):.3f}, least {min(rates):.3f}"
            )
    return "\n".join(lines)


def cell(found: Point | None) -> str:
    """A cell of a table: the time, and the lead in parentheses; empty for no point."""
    if found is None:
        return ""
    over, us = lead(found), found["us"]["tunefa"]
    shown = f"{us:.1f}" if us < 1000 else f"{us:,.0f}"
    if Workload.parse(found["workload"]).mla:
        rates = found["gb_per_s"]["tunefa"] / 1e3, found["tflops"]["tunefa"]
        shown += f", {rates[0]:.2f} TB/s, {rates[1]:.0f} TFLOP/s"
    if over is None:
        return shown
    return f"**{shown}** ({over:.2f})" if over > 1 else f"{shown} ({over:.2f})"


if __name__ == "__main__":
    main()
