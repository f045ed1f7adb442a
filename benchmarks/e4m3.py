"""Races e4m3 attention with FlashAttention-3 and cuDNN on this machine's GPU, and compares errors.

    python -m benchmarks.e4m3 [--out FILE] [-w WORKLOAD ...]
    python -m benchmarks.e4m3 --from FILE           # prints the table of a file

Of each workload, these run in turns, as CUDA graphs of calls on several tensors (see
`benchmarks.graphs`): `tunefa.flash_attention` with its exact sums (`tunefa`) and with
accumulate="fast" (`fast`), each with the config that the runtime takes; FlashAttention-3 of the
wheel fa3-fwd (`fa3`); and cuDNN's sdpa_fp8 by nvidia-cudnn-frontend, whose output is in e4m3, as
that in bf16 is for Blackwell only (`cudnn`).

Errors are those of the last rows of one head against fp64 on the same e4m3 inputs, in norm: with
normal V, and with V between 0.5 and 1.5, where sums grow with the number of keys.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tunefa
from benchmarks import markdown, point_files
from benchmarks.graphs import Call, raced
from benchmarks.point_files import Point
from benchmarks.prefill import fa3_module
from tunefa.runtime import process
from tunefa.spec.workload import Workload

SIZES = ("b1_h32_q16384_d64", "b4_h16_q4096_d128", "b1_h16_q16384_d128", "b1_h8_q16384_d256")
WORKLOADS = tuple(f"{sizes}_e4m3_{mask}" for sizes in SIZES for mask in ("full", "causal"))
CALLS, ROWS = 4, 128
"""Tensors that a graph has in turn, and rows whose errors are computed."""
E4M3 = torch.float8_e4m3fn
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Run = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Computes the output of q, k and v, (batch, seqlen, heads, head_dim) each."""


def made(workload: Workload, seed: int, positive: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k and v: normal, or with v between 0.5 and 1.5."""
    w, generator = workload, torch.Generator(DEVICE).manual_seed(seed)
    shape = (w.batch, w.seqlen_q, w.heads, w.head_dim)
    q, k, v = (torch.randn(shape, device=DEVICE, generator=generator) for _ in range(3))
    if positive:
        v = torch.rand(shape, device=DEVICE, generator=generator) + 0.5
    return q.to(E4M3), k.to(E4M3), v.to(E4M3)


def error(workload: Workload, run: Run, positive: bool) -> float:
    """The relative error of the last rows of one head."""
    q, k, v = made(workload, 0, positive)
    found = run(q, k, v)[0, -ROWS:, 0].double()
    q, k, v = (x[0, :, 0].double() for x in (q, k, v))
    scores = q[-ROWS:] @ k.T * workload.head_dim**-0.5
    if workload.causal:
        keys = torch.arange(workload.seqlen_k, device=DEVICE)
        scores = scores.masked_fill(keys > keys[-ROWS:, None], -torch.inf)
    right = scores.softmax(-1) @ v
    return float((found - right).norm() / right.norm())


def by_tunefa(workload: Workload, **accumulate: Any) -> Run:
    """tunefa, with the options of the sums."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = tunefa.flash_attention(q, k, v, causal=workload.causal, **accumulate)
        return out

    return run


def by_fa3(workload: Workload) -> Run:
    """FlashAttention-3. Raises ImportError where it is not installed."""
    attention = fa3_module().flash_attn_func

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = attention(q, k, v, causal=workload.causal)
        out: Tensor = found[0] if isinstance(found, tuple) else found
        return out

    return run


def by_cudnn(workload: Workload) -> Run:
    """cuDNN, with factors of 1. Raises ImportError where nvidia-cudnn-frontend is not installed."""
    cudnn: Any = importlib.import_module("cudnn")
    fp8, fp32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    types = {"intermediate_data_type": fp32, "compute_data_type": fp32}
    graph = cudnn.pygraph(io_data_type=fp8, **types)
    like = [x.transpose(1, 2) for x in made(workload, 0)]
    inputs = [
        graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=fp8)
        for name, x in zip("qkv", like, strict=True)
    ]
    one, single = torch.ones(1, 1, 1, 1, device=DEVICE), {"dim": [1] * 4, "stride": [1] * 4}
    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    factors = {name: graph.tensor(name=name, data_type=fp32, **single) for name in names}
    out, _, *largest = graph.sdpa_fp8(
        **dict(zip("qkv", inputs, strict=True)), **factors, is_inference=True,
        attn_scale=workload.head_dim**-0.5, use_causal_mask=workload.causal, name="attention",
    )  # fmt: skip
    out.set_output(True).set_dim(list(like[0].shape)).set_stride(list(like[0].stride()))
    out.set_data_type(fp8)
    for each in largest:
        each.set_output(True).set_dim([1] * 4).set_stride([1] * 4).set_data_type(fp32)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=DEVICE)
    handle, maxima = cudnn.create_handle(), torch.zeros(2, 1, 1, 1, 1, device=DEVICE)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = torch.empty_like(q)
        given = dict(zip(inputs, (x.transpose(1, 2) for x in (q, k, v)), strict=True))
        given |= {out: found.transpose(1, 2), **dict.fromkeys(factors.values(), one)}
        given |= dict(zip(largest, maxima, strict=True))
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(given, workspace, handle=handle)
        return found

    return run


RUNS: dict[str, Callable[[Workload], Run]] = {
    "tunefa": by_tunefa,
    "fast": lambda workload: by_tunefa(workload, accumulate="fast"),
    "fa3": by_fa3,
    "cudnn": by_cudnn,
}


def point(workload: Workload) -> Point:
    """The figures of one workload, by implementation."""
    tensors = [made(workload, seed) for seed in range(CALLS)]
    runs: dict[str, Run] = {}
    chosen = {}

    def maker(name: str) -> Callable[[], Call]:
        def start() -> Call:
            run = runs[name] = RUNS[name](workload)
            run(*tensors[0])
            if name in ("tunefa", "fast") and (last := tunefa.last_choice()):
                chosen[name] = {"kernel": last.kernel, "config": last.config, "why": last.why}
            return lambda number: run(*tensors[number])

        return start

    us, failed = raced({name: maker(name) for name in RUNS}, CALLS)
    errors = {
        name: [error(workload, runs[name], positive) for positive in (False, True)] for name in us
    }
    tflops = {name: round(workload.flops / each / 1e6, 1) for name, each in us.items()}
    made_of = {"us": us, "tflops": tflops, "errors": errors, "chosen": chosen, "failed": failed}
    return {"workload": str(workload), **made_of}


def table(points: Sequence[Point]) -> str:
    """A row for each workload: TFLOP/s, the leads over the best peer, and the errors."""
    rows = [["", *RUNS, "over the best peer", "fast", "errors, normal V", "positive V"]]
    for each in points:
        tflops, errors = each["tflops"], each["errors"]
        best = max((tflops[name] for name in ("fa3", "cudnn") if name in tflops), default=None)
        leads = [f"{tflops[name] / best:.3f}" if best else "" for name in ("tunefa", "fast")]
        of_kind = [
            ", ".join(f"{errors[name][kind]:.1e}" for name in RUNS if name in errors)
            for kind in (0, 1)
        ]
        figures = [f"{tflops[name]:.0f}" if name in tflops else "" for name in RUNS]
        rows.append([markdown.short(Workload.parse(each["workload"])), *figures, *leads, *of_kind])
    return markdown.table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=Path, dest="recorded")
    parser.add_argument("-w", "--workload", nargs="+", default=WORKLOADS)
    given = parser.parse_args()
    if given.recorded:
        print(table(point_files.read(given.recorded)))
        return
    process.current().leave_out_libraries()
    points = []
    for text in given.workload:
        points.append(point(Workload.parse(text)))
        print(points[-1]["workload"], points[-1]["tflops"], points[-1]["failed"], flush=True)
        torch.cuda.empty_cache()
    print(table(points))
    point_files.write(given.out, points)


if __name__ == "__main__":
    main()
