"""tunefa's forward beside its peers, on one GPU, on the same tensors, in one run.

    python benchmarks/forward.py --matrix          # the 36 points of docs/benchmarks.md
    python benchmarks/forward.py fwd_b2_h16_q8192_k8192_d128_bf16_full --peers cudnn,fa4

Every figure is the device's time of one launch with a cold L2, the median of interleaved rounds of
rotated order. What can be captured in a CUDA graph is, so that nobody's host side counts. Peers
that are not installed are left out by name; each gets the layout it likes best. tunefa runs the
config that `import tunefa` finds, through the call that a user makes. Before it is timed, each
one's output is compared with fp32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel

import tunefa
from tunefa import check, reference
from tunefa.monitor import Monitor
from tunefa.timing import Stopwatch
from tunefa.workload import Workload

TOKENS, HIDDEN = 16384, 2048
OURS = "tunefa"
Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One workload: TFLOP/s by contestant, and what the device did meanwhile."""

    workload: Workload
    tflops: dict[str, float]
    why: str
    device: dict[str, Any]

    @property
    def best_peer(self) -> str:
        """Who of the others is fastest; tunefa where nobody else runs."""
        peers = {name: rate for name, rate in self.tflops.items() if name != OURS}
        return max(peers, key=lambda name: peers[name], default=OURS)

    @property
    def ratio(self) -> float:
        """tunefa's speed over that of the best peer."""
        return self.tflops[OURS] / self.tflops[self.best_peer]


def matrix() -> list[Workload]:
    """head_dim 64, 128, 256; lengths 512 to 16384; full and causal; 16k tokens, 2048 wide."""
    return [
        Workload.of(batch=TOKENS // s, heads=HIDDEN // d, seqlen_q=s, head_dim=d, causal=causal)
        for d, s, causal in itertools.product(
            (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384), (False, True)
        )
    ]


def sdpa(backend: SDPBackend, tensors: tuple[Any, ...], causal: bool) -> Callable[[], Any]:
    """PyTorch's scaled_dot_product_attention through one backend; tensors are BHSD."""
    q, k, v = (tensor.contiguous() for tensor in tensors)

    def call() -> Any:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
            )

    return call


def flex(tensors: tuple[Any, ...], causal: bool) -> Callable[[], Any]:
    """FlexAttention, autotuned by Inductor."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (tensor.contiguous() for tensor in tensors)
    compiled = torch.compile(flex_attention, dynamic=False, mode="max-autotune-no-cudagraphs")
    lengths = q.shape[2], k.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, *lengths) if causal else None
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def fa4(tensors: tuple[Any, ...], causal: bool) -> Callable[[], Any]:
    """flash-attn-4 (CuTe)."""
    from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]

    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in tensors)
    return lambda: flash_attn_func(q, k, v, causal=causal)


PEERS = {
    "cudnn": lambda tensors, causal: sdpa(SDPBackend.CUDNN_ATTENTION, tensors, causal),
    "fa2": lambda tensors, causal: sdpa(SDPBackend.FLASH_ATTENTION, tensors, causal),
    "flex": flex,
    "fa4": fa4,
}


def contestants(workload: Workload, peers: list[str]) -> dict[str, Call]:
    """Everything that runs here and is right, by name; what is not is said on stderr."""
    torch.manual_seed(0)
    q, k, v, _, _ = check.tensors(workload, "cuda")
    qs, ks, vs = (tensor.transpose(1, 2) for tensor in (q, k, v))
    causal = workload.causal
    made: dict[str, Callable[[], Call]] = {
        OURS: lambda: lambda: tunefa.flash_attention(qs, ks, vs, causal=causal),
        **{peer: lambda make=PEERS[peer]: make((q, k, v), causal) for peer in peers},  # type: ignore[misc]
    }
    heads = min(workload.heads, 2 * workload.group)
    some = (q[:1, :heads], k[:1, : heads // workload.group], v[:1, : heads // workload.group])
    problem = reference.Problem(*some, causal, workload.head_dim**-0.5, workload.window)
    right, _ = reference.attention(problem, torch.float32)
    found: dict[str, Call] = {}
    for name, make in made.items():
        try:
            call = make()
            out = call()
            out = out[0] if isinstance(out, tuple) else out
            out = out if out.shape == q.shape[:3] + v.shape[3:] else out.transpose(1, 2)
            error = float((out[:1, :heads].float() - right).norm() / right.norm())
            if not error <= check.TOLERANCE[workload.dtype]:
                raise RuntimeError(f"its error is {error:.1e}")
            found[name] = captured(call)
        except (ImportError, RuntimeError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"{name} is left out of {workload}: {said}", file=sys.stderr)
    return found


def captured(call: Call) -> Call:
    """The replay of a CUDA graph of the call; itself where it cannot be captured."""
    try:
        graph = torch.cuda.CUDAGraph()
        call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            call()
    except RuntimeError as error:
        print(f"not captured: {str(error).splitlines()[0]}", file=sys.stderr)
        torch.cuda.synchronize()
        return call
    replay: Call = graph.replay
    return replay


def measured(workload: Workload, peers: list[str], rounds: int) -> Row:
    """All contestants on one workload, interleaved."""
    found = contestants(workload, peers)
    chosen = tunefa.last_choice()
    stopwatch = Stopwatch("graph")
    samples: list[list[float]] = [[] for _ in found]
    with Monitor() as watch:
        for _ in range(rounds // 3):
            for row, more in zip(
                samples, stopwatch.rounds_us(list(found.values()), 3), strict=True
            ):
                row += more
            watch.read()
    medians = map(statistics.median, samples)
    rates = {
        name: workload.flops / median / 1e6 for name, median in zip(found, medians, strict=True)
    }
    return Row(workload, rates, chosen.why if chosen else "", watch.summary())


def table(rows: list[Row]) -> Table:
    """TFLOP/s, and tunefa's ratio to the best peer."""
    names = sorted({name for row in rows for name in row.tflops}, key=[OURS, *PEERS].index)
    made = Table("workload", *names, "over best peer", "MHz", "W", box=None, pad_edge=False)
    for row in rows:
        rates = [f"{row.tflops[name]:.0f}" if name in row.tflops else "" for name in names]
        mhz, watts = (row.device.get(key, [""])[-1] for key in ("sm_mhz", "power_w"))
        peer = f"{row.ratio:.3f} {row.best_peer}"
        made.add_row(str(row.workload), *rates, peer, str(mhz), str(watts))
    return made


def main() -> None:
    """Measures, prints the table, and writes every figure where --out says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workloads", nargs="*", type=Workload.parse, help="without windows")
    parser.add_argument("--matrix", action="store_true", help="add the 36 points")
    parser.add_argument("--peers", default="cudnn,fa2,fa4", help="of " + ", ".join(PEERS))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, help="JSON lines")
    options = parser.parse_args()
    peers = [peer for peer in options.peers.split(",") if peer]
    rows = []
    for workload in [*options.workloads, *(matrix() if options.matrix else [])]:
        row = measured(workload, peers, options.rounds)
        rows.append(row)
        print(f"{row.workload} {row.ratio:.3f} {row.best_peer} ({row.why})", file=sys.stderr)
        if options.out:
            line = {"workload": str(row.workload), "tflops": row.tflops, "why": row.why}
            with options.out.open("a") as file:
                file.write(json.dumps({**line, "device": row.device}) + "\n")
        torch.cuda.empty_cache()
    console = Console(width=160)
    console.print(table(rows))
    mean = math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
    ahead = sum(row.ratio > 1.0 for row in rows)
    console.print(f"ahead at {ahead} of {len(rows)}, geometric mean {mean:.3f} over the best peer")


if __name__ == "__main__":
    main()
