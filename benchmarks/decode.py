"""Races attention over a cache with the libraries that are installed, on the GPU of this machine.

    python -m benchmarks.decode [--out FILE] [--batch 1 16 ...] [--keys 1024 ...] [--page-size N]
                                [--e4m3-cache] [-w WORKLOAD ...]
                                [--config TREE_DEPTH=3,SPLIT_COST=16 ...]
    python -m benchmarks.decode --mla --page-size 64 [--out FILE]   # multi-head latent attention
    python -m benchmarks.decode --from FILE        # prints the tables of a file

Of each point, `tunefa.decode_attention` and the peers run in turns, on the same tensors, as CUDA
graphs: a graph calls one of them on several caches, one after the other, which are many times as
large as the L2 cache together: what a call before has left there is at most 2 % of what is read.
Graphs are replayed in another random order in each round, and a figure is the median of them.
tunefa runs with the config that its runtime takes, and libraries are no candidates. Each --config
is raced too: the default of attention_decode_cuda_sm90 with these parameters changed. Bytes are
those of the cache read once, of the queries and of the output.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tunefa
from benchmarks import decode_configs, point_files
from benchmarks.graphs import Call, raced
from benchmarks.point_files import Point
from tunefa.measure import ops
from tunefa.runtime import process
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

HEADS = ((32, 8), (64, 8), (32, 4), (32, 32))
BATCHES, KEYS = (1, 4, 16, 64, 128), (1024, 4096, 16384, 32768, 131072)
MLA_HEADS = ((16, 1), (128, 1))
MLA_BATCHES, MLA_KEYS = (1, 16, 64, 128), (1024, 2048, 4096, 8192, 16384, 32768)
COLD_BYTES, MOST_BYTES, MOST_CACHES = 3e9, 80e9, 500


def ours(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """tunefa, with the layout of the tensors that `ops` makes."""
    views = []
    for tensors in made:
        q, k, v, out, _, *more = tensors
        descales = {"k_descale": more[-2], "v_descale": more[-1]} if workload.e4m3cache else {}
        lengths = more[: 1 + (workload.page_size is not None)]
        views.append(([x.transpose(1, 2) for x in (q, k, v, out)], lengths, descales))

    def call(number: int) -> None:
        (q, k, v, out), lengths, descales = views[number]
        tunefa.decode_attention(q, k, v, *lengths, out=out, **descales)

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


def sdpa(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """PyTorch's attention, by whatever serves such head dimensions, with keys for each head."""

    def call(number: int) -> None:
        q, k, v = made[number][:3]
        k, v = (each.expand(-1, workload.heads, -1, -1) for each in (k, v))
        torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return call


def flashinfer(made: Sequence[tuple[Any, ...]], workload: Workload) -> Call:
    """FlashInfer's latent attention over pages, planned beforehand; latents and rotated parts are
    caches of their own there."""
    library = importlib.import_module("flashinfer")
    w, page, wrappers, caches = workload, workload.page_size or 1, [], []
    for q, k, _, _, _, seqlens, table in made:
        workspace = torch.empty(128 * 2**20, dtype=torch.uint8, device=q.device)
        wrapper = library.mla.BatchMLAPagedAttentionWrapper(workspace, backend="auto")
        starts = torch.arange(w.batch + 1, dtype=torch.int32, device=q.device)
        wrapper.plan(
            starts * w.seqlen_q, starts * table.shape[1], table.flatten(), seqlens, w.heads,
            w.head_dim_v, w.head_dim - w.head_dim_v, page, w.causal, w.head_dim**-0.5, q.dtype,
            k.dtype,
        )  # fmt: skip
        wrappers.append(wrapper)
        rows = q.transpose(1, 2).flatten(0, 1)
        parts = (each[..., : w.head_dim_v].contiguous() for each in (rows, k[:, 0]))
        rest = (each[..., w.head_dim_v :].contiguous() for each in (rows, k[:, 0]))
        caches.append([*parts, *rest])

    def call(number: int) -> None:
        q_latent, latent, q_rope, rope = caches[number]
        wrappers[number].run(q_latent, q_rope, latent, rope)

    return call


PEERS = {"cudnn": cudnn, "fa2": fa2, "fa3": fa3}


def peers_of(workload: Workload) -> dict[str, Callable[..., Call]]:
    """The peers that may serve a workload; one that is not installed fails when it is made."""
    if workload.mla:
        return {"flashinfer": flashinfer} if workload.page_size else {"sdpa": sdpa}
    return dict(PEERS) if workload.page_size is None and not workload.e4m3cache else {}


def point(workload: Workload, configs: Sequence[Config] = ()) -> Point:
    """The figures of one workload, by implementation."""
    own_bytes = workload.io_bytes
    caches = min(MOST_CACHES, math.ceil(COLD_BYTES / own_bytes))
    made = [ops.of(workload).tensors(workload, "cuda", seed) for seed in range(caches)]
    makers = {"tunefa": ours, **peers_of(workload)}
    makers |= {decode_configs.name(each): partial(decode_configs.call, each) for each in configs}
    us, failed = raced(
        {name: partial(each, made, workload) for name, each in makers.items()}, caches
    )
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
    parser.add_argument("-w", "--workload", type=Workload.parse, nargs="+", help="these alone")
    parser.add_argument("--config", type=decode_configs.parsed, nargs="+")
    parser.add_argument("--mla", action="store_true", help="multi-head latent attention")
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
        found = point(workload, given.config or ())
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
        )
        for (of_q, of_kv), batch, keys in itertools.product(heads, batches, lengths)
    ]  # fmt: skip


def lead(found: Point, of: str = "tunefa") -> float | None:
    """The time of the best peer over tunefa's, or that of a config; None where no peer ran."""
    peers = [us for name, us in found["us"].items() if name != "tunefa" and "=" not in name]
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
    names = dict.fromkeys(name for each in points for name in each["us"] if "=" in name)
    for name in ("tunefa", *names):
        leads = [each for found in points if (each := lead(found, name)) is not None]
        if leads:
            mean, wins = statistics.geometric_mean(leads), sum(each > 1 for each in leads)
            lines.append(
                f"\n{name}: {len(leads)} points, ahead at {wins}, mean {mean:.3f}, "
                f"least {min(leads):.3f}"
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
