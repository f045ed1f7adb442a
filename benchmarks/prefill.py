"""Races attention of packed queries over pages with what else computes it, on this machine's GPU.

    python -m benchmarks.prefill [--out FILE] [--page-size 16 64 ...] [-w WORKLOAD ...]
    python -m benchmarks.prefill --from FILE        # prints the table of a file

Of each workload, these run in turns, as CUDA graphs of calls on several caches (see
`benchmarks.decode`): `tunefa.flash_attention_varlen` over pages; the same over keys that follow one
another, so without the pages (`contiguous`); and FlashAttention-3 over pages (`fa3_paged`, which
the wheel fa3-fwd 0.0.3 was built without) and over keys that follow one another (`fa3`). tunefa
runs with the configs that its runtime takes.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tunefa
from benchmarks import point_files
from benchmarks.graphs import Call, raced
from benchmarks.point_files import Point
from tunefa.measure import ops
from tunefa.measure.ops.decode import sequence_of
from tunefa.runtime import process
from tunefa.spec.workload import Workload

WORKLOADS = (
    "b1_q8192_k8192", "b8_q2048_k2048_varlen", "b32_q512_k512_varlen", "b1_q2048_k32768",
    "b8_q512_k8192_varlen", "b32_q64_k4096_varlen", "b64_q16_k4096_varlen",
)  # fmt: skip
"""Whole prompts, alone and together; chunks of prompts behind many keys, and of few queries."""
PAGE_SIZES, CACHES = (16, 64, 256), 4
FA3 = ("flash_attn_interface", "fa3_fwd_interface")
"""The modules of FlashAttention-3: built from its sources, and of the wheel fa3-fwd."""
Made = Sequence[tuple[Any, ...]]


def over_pages(made: Made, workload: Workload) -> Call:
    """tunefa over pages."""

    def call(number: int) -> None:
        q, k, v, out, _, seqlens, table, starts = made[number]
        paged = {"block_table": table, "seqlens_k": seqlens, "out": out, "causal": workload.causal}
        tunefa.flash_attention_varlen(
            q,
            k.transpose(1, 2),
            v.transpose(1, 2),
            starts,
            max_seqlen_q=workload.seqlen_q,
            max_seqlen_k=workload.seqlen_k,
            **paged,
        )

    return call


def packed_keys(made: Made, workload: Workload) -> list[tuple[Any, ...]]:
    """(q, k, v, cu_seqlens_q, cu_seqlens_k) of each call, with keys that follow one another."""
    found = []
    for tensors in made:
        each = [sequence_of(workload, tensors, number) for number in range(workload.batch)]
        k, v = (torch.cat([x.transpose(0, 1) for x in parts]) for parts in zip(*each, strict=True))
        starts = torch.nn.functional.pad(tensors[5].cumsum(0), (1, 0)).int()
        found.append((tensors[0], k, v, tensors[7], starts))
    return found


def contiguous(made: Made, workload: Workload) -> Call:
    """tunefa over keys that follow one another."""
    tensors, longest = packed_keys(made, workload), (workload.seqlen_q, workload.seqlen_k)

    def call(number: int) -> None:
        q, k, v, *starts = tensors[number]
        given = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), starts, strict=True))
        given |= dict(zip(("max_seqlen_q", "max_seqlen_k"), longest, strict=True))
        tunefa.flash_attention_varlen(q, k, v, **given, causal=workload.causal)

    return call


def fa3_module() -> Any:
    """FlashAttention-3. Raises ImportError where it is not installed."""
    there = [name for name in FA3 if importlib.util.find_spec(name)]
    return importlib.import_module(there[0] if there else FA3[0])


def fa3_paged(made: Made, workload: Workload) -> Call:
    """FlashAttention-3 over pages."""

    def call(number: int) -> None:
        q, k, v, _, _, seqlens, table, starts = made[number]
        fa3_module().flash_attn_with_kvcache(
            *(q, k.transpose(1, 2), v.transpose(1, 2)),
            cache_seqlens=seqlens, page_table=table, cu_seqlens_q=starts,
            max_seqlen_q=workload.seqlen_q, causal=workload.causal,
        )  # fmt: skip

    return call


def fa3(made: Made, workload: Workload) -> Call:
    """FlashAttention-3 over keys that follow one another."""
    tensors, longest = packed_keys(made, workload), (workload.seqlen_q, workload.seqlen_k)

    def call(number: int) -> None:
        fa3_module().flash_attn_varlen_func(*tensors[number], *longest, causal=workload.causal)

    return call


PEERS = {"contiguous": contiguous, "fa3_paged": fa3_paged, "fa3": fa3}


def point(workload: Workload) -> Point:
    """The figures of one workload, by implementation."""
    made = [ops.of(workload).tensors(workload, "cuda", seed) for seed in range(CACHES)]
    over_pages(made, workload)(0)
    chosen = tunefa.last_choice()
    assert chosen is not None
    makers = {"tunefa": over_pages, **PEERS}
    calls = {name: partial(each, made, workload) for name, each in makers.items()}
    us, failed = raced(calls, CACHES)
    return {
        "workload": str(workload),
        "us": us,
        "tflops": {name: round(workload.flops / each / 1e6, 1) for name, each in us.items()},
        "kernel": chosen.kernel,
        "config": chosen.config,
        "failed": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=Path, dest="recorded")
    parser.add_argument("--page-size", type=int, nargs="+", default=PAGE_SIZES)
    parser.add_argument("-w", "--workload", nargs="+", default=WORKLOADS)
    given = parser.parse_args()
    if given.recorded:
        print(table(point_files.read(given.recorded)))
        return
    process.current().leave_out_libraries()
    points = []
    for text in given.workload:
        for page_size in given.page_size:
            points.append(point(Workload.parse(f"{text}_page{page_size}")))
            print(points[-1]["workload"], points[-1]["us"], points[-1]["failed"], flush=True)
            torch.cuda.empty_cache()
    print(table(points))
    point_files.write(given.out, points)


def table(points: Sequence[Point]) -> str:
    """A row for each workload: us, and in parentheses TFLOP/s; the fastest over pages is bold."""
    names = ["tunefa", *PEERS]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for each in points:
        us, over = each["us"], ("tunefa", "fa3_paged")
        least = min(us[name] for name in over if name in us)
        cells = []
        for name in names:
            shown = f"{us[name]:,.1f} ({each['tflops'][name]:.0f})" if name in us else ""
            cells.append(f"**{shown}**" if name in over and us.get(name) == least else shown)
        lines.append(f"| {each['workload']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
