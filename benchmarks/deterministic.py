"""The time of deterministic gradients beside others, interleaved, on the GPU of this machine.

    python -m benchmarks.deterministic [--containing d128] [--rounds 21] [--out FILE]
                                       [--config BLOCK_M=80,L2_SECTION_HEADS=4] [-w WORKLOAD]

The contestants of each workload: attention_bwd_cuda_sm90 which adds dQ in any sequence, the same in
the sequence of the keys, with its default and each --config, attention_bwd_two_pass_gluon_sm90, and
flash-attn-4's deterministic mode, if it is installed. Each is compared with fp64 first. A time is
that of all kernels of a call, with a cold L2 cache. A share is the time of the first contestant
over that of another one: 0.90 is what deterministic gradients are to reach.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import decode_configs
from benchmarks.decode_configs import Changed
from tunefa.measure import backward_contest, contest, launches, ops, peers
from tunefa.measure.contest import Contest, Maker
from tunefa.measure.peer import Call, Tensors, Unserved
from tunefa.spec.target import Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

FUSED, TWO_PASS = "attention_bwd_cuda_sm90", "attention_bwd_two_pass_gluon_sm90"
UNORDERED, SEQUENCE = "fused, any sequence", "fused, deterministic"
PEER = "fa4"
TOKENS, COLUMNS = 16384, 2048
"""The sizes of each workload: batch x seqlen, and heads x head_dim."""


def workloads() -> Iterator[Workload]:
    """Yields the grid: head_dim 64 and 128, 1,024 to 16,384 tokens, full and causal."""
    for head_dim in (128, 64):
        for seqlen in (1024, 4096, 16384):
            for mask in ("full", "causal"):
                heads, batch = COLUMNS // head_dim, TOKENS // seqlen
                yield Workload.parse(
                    f"bwd_b{batch}_h{heads}_q{seqlen}_d{head_dim}_{mask}_deterministic"
                )


def launched(kernel: str, changes: Config, deterministic: bool = True) -> Maker:
    """Returns what makes launches of a kernel's default with some parameters changed."""

    def make(workload: Workload, tensors: Tensors) -> Call:
        asked = replace(workload, deterministic=deterministic)
        target = Target.named(torch.cuda.get_device_name())
        try:
            case, config = Changed(kernel, changes).at(asked, target)
        except ValueError as error:
            raise Unserved(str(error)) from error
        if why := case.why_not():
            raise Unserved(why)
        launch, outputs = launches.launch(case, config, tensors), tensors[ops.of(asked).OUTPUTS]

        def call() -> Any:
            launch()
            return outputs

        torch.cuda.synchronize()
        return call

    return make


def changed(text: str) -> Changed:
    """The config that is meant by `L2_SECTION_HEADS=4`. Raises ArgumentTypeError for others."""
    return decode_configs.parsed(f"{FUSED}:{text}")


def contestants(configs: list[Changed]) -> dict[str, Maker]:
    """Returns what makes the call of each contestant, the one that others are compared with
    first."""
    made = {UNORDERED: launched(FUSED, {}, deterministic=False), SEQUENCE: launched(FUSED, {})}
    for each in configs:
        made[f"{SEQUENCE} {str(each).partition(':')[2]}"] = launched(FUSED, each.changes)
    made["two passes"] = launched(TWO_PASS, {})
    peer = peers.load(PEER)
    made[peer.title] = functools.partial(backward_contest.call_of, peer)
    return made


def lines(found: Contest) -> Iterator[str]:
    """Yields a row of each contestant: the median in us, its quartiles, the share and the error."""
    yield f"{found.workload}"
    first = found.scores.get(UNORDERED)
    for name, score in found.scores.items():
        low, high = score.spread
        share = f"{first.median_us / score.median_us:6.3f}" if first else "     -"
        yield (
            f"  {name:55} {score.median_us:9.1f} us ({low:.1f} to {high:.1f}) {share}"
            f"  error {score.error:.1e}"
        )
    for name, why in found.left_out.items():
        yield f"  {name:55} left out: {why}"


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deterministic", description=__doc__.split("\n")[0]
    )
    parser.add_argument("-w", "--workload", type=Workload.parse, action="append")
    parser.add_argument("--containing", default="", help="only workloads with this in their text")
    parser.add_argument(
        "--config",
        type=changed,
        action="append",
        default=[],
        help="a deterministic config of the fused kernel; may be repeated",
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, help="writes all samples as JSON")
    return parser


def main(words: list[str] | None = None) -> None:
    """Runs the contests; prints a block for each."""
    given = options().parse_args(words)
    asked = [each for each in given.workload or workloads() if given.containing in str(each)]
    makers = contestants(given.config)
    settings = contest.Settings(rounds=given.rounds)
    found: list[Mapping[str, Any]] = []
    for workload in asked:
        made = contest.run(replace(workload, deterministic=True), makers, settings)
        found.append(made.to_data())
        print("\n".join(lines(made)), flush=True)
        if given.out:
            given.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
