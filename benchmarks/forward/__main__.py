"""Compares tunefa's forward pass with its peers, on one GPU, on the same tensors, in one run.

    python -m benchmarks.forward --rows first                  # the 36 points
    python -m benchmarks.forward --rows all --out forward.jsonl
    python -m benchmarks.forward b2_h16_q8192_d128_full --peers cudnn,fa4

It is `tunefa bench compare` for groups of rows, with Markdown tables: see docs/measuring.md.
Every figure is the median device time of a CUDA graph's replay with a cold L2 cache, in interleaved
rounds, after the outputs were compared with fp64. tunefa runs the config that `import tunefa`
finds, through the call that a user makes.

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

from benchmarks.forward import workloads
from benchmarks.forward.rows import Row, tables
from tunefa.compile.launch import driver
from tunefa.experiments import compare, run
from tunefa.experiments.compare import OURS
from tunefa.measure import peers
from tunefa.measure.contest import Settings, Step
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

PEERS = ["cudnn", "fa2", "flex", "fa4"]
"""The peers that are measured if none are named."""
GROUPS = [name for name in workloads.TITLES if name != "given"]


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `points` is a list of (group, workload), `peers` a list of names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forward",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", type=Workload.parse, metavar="WORKLOAD")
    parser.add_argument(
        "--rows", type=_names([*GROUPS, "all"]), default=[], help=f"of {', '.join(GROUPS)}, or all"
    )
    parser.add_argument(
        "--peers", type=_names(peers.names()), default=PEERS, help=f"default: {','.join(PEERS)}"
    )
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
    parser.add_argument("--rounds", type=int, default=21, help="default: 21")
    parser.add_argument("--out", type=Path, help="append JSON lines to this file")
    made = parser.parse_args(arguments)
    groups = GROUPS if "all" in made.rows else made.rows
    made.points = [("given", workload) for workload in made.workloads]
    made.points += [(group, workload) for group in groups for workload in workloads.group(group)]
    if not made.points:
        parser.error("nothing to measure: give --rows or workloads")
    if made.flex_every < 1 or made.rounds < 1:
        parser.error("--flex-every and --rounds start at 1")
    return made


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an argument: known names, separated by commas."""

    def parse(text: str) -> list[str]:
        given = text.split(",")
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return given

    return parse


def peers_of(place: int, names: Sequence[str], flex_every: int) -> list[str]:
    """The peers of the row at `place`, counted from 0."""
    return [name for name in names if name != "flex" or place % flex_every == 0]


def main() -> None:
    """Measures and writes every row, and prints the tables. Exits with 1 if tunefa failed."""
    made = options(sys.argv[1:])
    there, absent = compare.present(made.peers)
    versions = made_with(made.peers)
    rows: list[Row] = []
    with compare.Comparisons(Settings(rounds=made.rounds), made.kernel) as comparisons:
        for place, (group, workload) in enumerate(made.points):
            found = comparisons.row(workload, peers_of(place, there, made.flex_every), _quiet)
            row = Row.of(group, found, absent, versions)
            rows.append(row)
            _write(row, made.out)
            print(f"{place + 1}/{len(made.points)} {_said(row)}", file=sys.stderr)
    print(tables(rows), end="")
    sys.exit(any(OURS in row.left_out for row in rows))


def made_with(names: Sequence[str]) -> dict[str, str]:
    """Returns the name of the device, and the versions of what runs on it."""
    devices = driver.devices()
    if not devices:
        raise SystemExit("this program measures, and this machine has no GPU")
    return {"device": devices[0].name, **run.made_with(), **compare.versions(names)}


def _write(row: Row, path: Path | None) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(row.line() + "\n")


def _said(row: Row) -> str:
    """The rates of a row, and who is left out, in lines for standard error."""
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in row.tflops.items())
    left_out = [f"  {name} is left out: {why}" for name, why in row.left_out.items()]
    return "\n".join([f"{row.workload}: {rates} ({row.chosen.get('why')})", *left_out])


def _quiet(step: Step) -> None:
    """Says nothing about a step of a contest: rows are soon measured."""


if __name__ == "__main__":
    main()
