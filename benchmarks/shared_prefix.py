"""Times attention over a cache with and without `shared_prefix`, on the GPU of this machine.

    python -m benchmarks.shared_prefix [--out FILE] [--batch 64] [--heads 32] [--kv-heads 8]
                                       [--keys 8704] [--prefix 0 8192 ...] [--page-size 64]

All sequences have the same number of keys, of which the first `--prefix` are the same pages. Both
calls run in turns on the same tensors, as CUDA graphs of calls on several caches, which are many
times as large as the L2 cache together. Without `shared_prefix` a sequence finds pages in the L2
cache that another one has read, so the time does not follow the bytes of the block tables. A figure
is the median of nine replays (benchmarks/graphs.py). The difference is that of both outputs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tunefa
from benchmarks import point_files
from benchmarks.graphs import raced
from benchmarks.point_files import Point
from tunefa.runtime import process

COLD_BYTES, MOST_CACHES = 3e9, 50
NAMES = {False: "each sequence", True: "shared prefix"}


def tensors(given: argparse.Namespace, prefix: int, seed: int) -> dict[str, Tensor]:
    """Arguments of `decode_attention` in bf16 on pages in random order."""
    torch.manual_seed(seed)
    page, batch = given.page_size, given.batch
    shared, pages = prefix // page, math.ceil(given.keys / page)
    count = shared + batch * (pages - shared)
    numbers = torch.randperm(count, device="cuda").int()
    own = numbers[shared:].view(batch, pages - shared)
    table = torch.cat([numbers[:shared].expand(batch, shared), own], 1).contiguous()
    kinds: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    cache = torch.randn(2, count, page, given.kv_heads, given.head_dim, **kinds)
    return {
        "q": torch.randn(batch, given.seqlen_q, given.heads, given.head_dim, **kinds),
        "k_cache": cache[0],
        "v_cache": cache[1],
        "seqlens": torch.full((batch,), given.keys, device="cuda", dtype=torch.int32),
        "block_table": table,
    }


def caller(made: list[dict[str, Tensor]], shared_prefix: bool) -> Callable[[int], None]:
    """A call on the cache with a number."""
    outs = [torch.empty_like(each["q"]) for each in made]

    def call(number: int) -> None:
        given: dict[str, Any] = made[number]
        tunefa.decode_attention(**given, out=outs[number], shared_prefix=shared_prefix)

    return call


def point(given: argparse.Namespace, prefix: int) -> dict[str, Any]:
    """The figures of one prefix: us of both calls, and their kernels."""
    row = 4 * given.kv_heads * given.head_dim  # bytes of a key and its value
    read = row * (prefix + given.batch * (given.keys - prefix))
    caches = min(MOST_CACHES, math.ceil(COLD_BYTES / read))
    made = [tensors(given, prefix, seed) for seed in range(caches)]
    us, failed = raced({name: partial(caller, made, on) for on, name in NAMES.items()}, caches)
    if failed:
        raise RuntimeError(f"a call failed: {failed}")
    chosen, outs, arguments = {}, [], dict[str, Any](made[0])
    for shared, name in NAMES.items():
        outs.append(tunefa.decode_attention(**arguments, shared_prefix=shared).float())
        choice = tunefa.last_choice()
        assert choice is not None
        chosen[name] = {"kernel": choice.kernel, "config": choice.config, "why": choice.why}
    return {
        "prefix": prefix,
        "us": us,
        "bytes_read_once": read,
        "difference": float((outs[0] - outs[1]).norm() / outs[0].norm()),
        "chosen": chosen,
    }


def table(points: list[Point]) -> str:
    """A row for each prefix: us of both, how many times as fast the shared one is, and its rate."""
    lines = ["| prefix | each sequence | shared prefix | times as fast | GB/s of distinct bytes | "
             "difference |",
             "| ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for each in points:
        one, other = (each["us"][name] for name in NAMES.values())
        rate = each["bytes_read_once"] / other / 1e3
        lines.append(
            f"| {each['prefix']:,} | {one:.1f} | {other:.1f} | {one / other:.2f} | {rate:,.0f} "
            f"| {each['difference']:.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    sizes = {"batch": 64, "heads": 32, "kv-heads": 8, "head-dim": 128, "seqlen-q": 1, "keys": 8704,
             "page-size": 64}  # fmt: skip
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--prefix", type=int, nargs="+", default=[0, 8192])
    given = parser.parse_args()
    for prefix in given.prefix:
        if prefix % given.page_size or not 0 <= prefix <= given.keys:
            parser.error(
                f"--prefix {prefix}: give whole pages of {given.page_size}, at most --keys"
            )
    process.current().leave_out_libraries()
    points = []
    for prefix in given.prefix:
        points.append(point(given, prefix))
        torch.cuda.empty_cache()
    print(table(points))
    asked = {name: value for name, value in vars(given).items() if name != "out"}
    point_files.write(given.out, points, **asked)


if __name__ == "__main__":
    main()
