"""Compares tunefa's forward pass with its peers, on one GPU, on the same tensors, in one run.

    python -m benchmarks.forward --rows first                  # the 36 points
    python -m benchmarks.forward --rows all --out forward.jsonl
    python -m benchmarks.forward b2_h16_q8192_d128_full --peers cudnn,fa4

Every figure is the device's time of one launch with a cold L2 cache: the median over interleaved
rounds, each beginning with another contestant. Calls are captured in CUDA graphs where that is
possible, so that the host's time does not count. Each peer gets its preferred layout. Peers that
are not installed or do not serve a workload are left out, with the reason. tunefa runs the config
that `import tunefa` finds, through the call that a user makes. Before the timing, each output is
compared with fp32.

Groups of rows: first (head_dim 64, 128, 256; 512 to 16k long; full and causal), fp16 (the same at
head_dim 128), llama (grouped queries), dims (head_dim 72 to 192), rect (more keys than queries),
window, packed (sequences of many lengths), all. Each row is written to --out as a line of JSON when
it is measured. To make the Markdown tables from such a file: python -m benchmarks.forward.rows
forward.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from benchmarks.forward import measure, workloads
from benchmarks.forward.peers import PEERS
from benchmarks.forward.rows import OURS, Row, tables
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

GROUPS = [name for name in workloads.TITLES if name != "given"]


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `points` is a list of (group, workload), `peers` a list of names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forward",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", type=_comparable, metavar="WORKLOAD")
    parser.add_argument(
        "--rows", type=_names([*GROUPS, "all"]), default=[], help=f"of {', '.join(GROUPS)}, or all"
    )
    parser.add_argument("--peers", type=_names(PEERS), default=list(PEERS), help="default: all")
    parser.add_argument(
        "--kernel",
        choices=kernels.names(),
        help="the default config of this kernel, instead of what `import tunefa` finds",
    )
    parser.add_argument(
        "--flex-every",
        type=int,
        default=5,
        metavar="N",
        help="FlexAttention, which compiles for 10 to 20 s, at every Nth row only; default: 5",
    )
    parser.add_argument("--rounds", type=int, default=21, help="a multiple of 3; default: 21")
    parser.add_argument("--out", type=Path, help="append JSON lines to this file")
    made = parser.parse_args(arguments)
    groups = GROUPS if "all" in made.rows else made.rows
    made.points = [("given", workload) for workload in made.workloads]
    made.points += [(group, workload) for group in groups for workload in workloads.group(group)]
    if not made.points:
        parser.error("nothing to measure: give --rows or workloads")
    if made.flex_every < 1 or made.rounds < 3:
        parser.error("--flex-every starts at 1 and --rounds at 3")
    return made


def _comparable(text: str) -> Workload:
    """The type of an argument: a workload that peers can be compared on."""
    workload = Workload.parse(text)
    if workload.softcap or workload.window_right is not None:
        raise argparse.ArgumentTypeError(
            f"{workload} has a soft-cap or keys beyond the diagonal: peers are called for neither"
        )
    if workload.window_left is not None and (workload.varlen or not workload.causal):
        raise argparse.ArgumentTypeError(
            f"{workload} has a window and is packed or not causal: peers are called for neither"
        )
    return workload


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an argument: known names, separated by commas."""

    def parse(text: str) -> list[str]:
        given = text.split(",")
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return given

    return parse


def peers_of(place: int, peers: Sequence[str], flex_every: int) -> list[str]:
    """The peers of the row at `place`, counted from 0."""
    return [name for name in peers if name != "flex" or place % flex_every == 0]


def main() -> None:
    """Measures and writes every row, and prints the tables. Exits with 1 if tunefa failed."""
    made = options(sys.argv[1:])
    rows: list[Row] = []
    for place, (group, workload) in enumerate(made.points):
        peers = peers_of(place, made.peers, made.flex_every)
        row = measure.measured(group, workload, peers, made.rounds, made.kernel)
        rows.append(row)
        if made.out:
            with made.out.open("a", encoding="utf-8") as file:
                file.write(row.line() + "\n")
        rates = ", ".join(f"{name} {rate:.0f}" for name, rate in row.tflops.items())
        print(
            f"{place + 1}/{len(made.points)} {workload}: {rates} ({row.chosen.get('why')})",
            file=sys.stderr,
        )
        for name, why in row.left_out.items():
            print(f"  {name} is left out: {why}", file=sys.stderr)
        torch.cuda.empty_cache()
    print(tables(rows), end="")
    sys.exit(any(OURS in row.left_out for row in rows))


if __name__ == "__main__":
    main()
