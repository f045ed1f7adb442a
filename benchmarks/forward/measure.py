"""Measures one workload: all contestants on the same tensors, in interleaved rounds."""

from __future__ import annotations

import statistics
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

import tunefa
from benchmarks.forward.peers import PACKED_PEERS, PEERS, Call, Tensors, Unserved
from benchmarks.forward.rows import OURS, Row
from tunefa.compile import provenance
from tunefa.compile.launch import driver
from tunefa.measure import check, launches, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import TOLERANCE
from tunefa.measure.monitor import Monitor
from tunefa.measure.timing import Stopwatch
from tunefa.runtime.chip import Chip
from tunefa.spec import kernel
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

_VERSIONS = ("tunefa", "torch", "triton", "driver")
_LONGEST_REASON = 120


def measured(
    group: str, workload: Workload, peers: Sequence[str], rounds: int, only: str | None = None
) -> Row:
    """Measures one workload and returns its row; `rounds` is rounded down to a multiple of 3.

    tunefa runs the config that `import tunefa` finds, or the default config of the kernel `only`.
    """
    torch.manual_seed(0)
    tensors = check.tensors(workload, "cuda")
    if workload.dtype == "e4m3":
        for descale in tensors[5:]:
            descale.fill_(1.0)  # as in the call, which gives none
    calls, left_out = contestants(workload, tensors, peers, only)
    chosen = tunefa.last_choice()
    stopwatch = Stopwatch("graph")
    samples: list[list[float]] = [[] for _ in calls]
    with Monitor() as watch:
        for _ in range(rounds // 3):
            times = stopwatch.rounds_us(list(calls.values()), 3)
            for sample, more in zip(samples, times, strict=True):
                sample += more
            watch.read()
    medians = map(statistics.median, samples)
    tflops = {name: workload.flops / us / 1e6 for name, us in zip(calls, medians, strict=True)}
    ran: dict[str, Any] = {}
    if only is not None:
        ran = {"kernel": only, "why": "its default config, and no other kernel"}
    elif chosen is not None:
        ran = {"kernel": chosen.kernel, "config": chosen.config, "why": chosen.why}
    return Row(group, workload, tflops, left_out, ran, watch.summary(), made_with())


def contestants(
    workload: Workload, tensors: tuple[Any, ...], peers: Sequence[str], only: str | None = None
) -> tuple[dict[str, Call], dict[str, str]]:
    """Returns the contestants that run and are right, ready to be timed, by name; and why others
    are left out.

    `tensors` are those of `check.tensors`.
    """
    inputs, ours, others, truth = tensors[:3], _ours, PEERS, _truth
    if workload.varlen:
        inputs += tensors[5:]  # cu_seqlens
        ours, others, truth = _ours_packed, PACKED_PEERS, _truth_packed
    right, part = truth(workload, inputs)
    made: dict[str, Callable[[], Call]] = {
        OURS: lambda: ours(workload, inputs) if only is None else _default(only, workload, tensors)
    }
    made |= {name: lambda make=others[name]: make(workload, inputs) for name in peers}  # type: ignore[misc]
    found: dict[str, Call] = {}
    left_out: dict[str, str] = {}
    for name, make in made.items():
        try:
            call = make()
            error = float((call()[part].float() - right).norm() / right.norm())
            if error <= TOLERANCE[workload.dtype]:
                found[name] = captured(call)
            else:
                left_out[name] = f"its relative error is {error:.1e}"
        except Exception as error:  # whatever the peers' code raises
            said = (str(error).splitlines() or [type(error).__name__])[0]
            left_out[name] = textwrap.shorten(said, _LONGEST_REASON, placeholder=" ...")
    return found, left_out


def _ours(workload: Workload, tensors: Tensors) -> Call:
    """The call that a user makes."""
    q, k, v = (tensor.transpose(1, 2) for tensor in tensors)

    def call() -> Any:
        out = tunefa.flash_attention(q, k, v, causal=workload.causal, window=workload.band)
        return out.transpose(1, 2)

    return call


def _ours_packed(workload: Workload, tensors: Tensors) -> Call:
    """The call that a user makes for packed sequences."""
    arguments = (*tensors, workload.seqlen_q, workload.seqlen_k)
    return lambda: tunefa.flash_attention_varlen(*arguments, causal=workload.causal)


def _default(name: str, workload: Workload, tensors: tuple[Any, ...]) -> Call:
    """The default config of a kernel. Raises Unserved for a workload that it does not serve."""
    target = Chip.of(torch.device("cuda", torch.cuda.current_device())).target
    assert target is not None
    case = Case(kernel.load(name), workload, target)
    why_not = case.why_not()
    if why_not is not None:
        raise Unserved(why_not)
    launch = launches.launch(case, case.default(), tensors)

    def call() -> Any:
        launch()
        return tensors[3]

    return call


def _truth(workload: Workload, tensors: Tensors) -> tuple[Any, tuple[slice, slice]]:
    """The fp32 result of some heads of the first sequence, and their place in an output."""
    q, k, v = tensors
    heads, heads_kv = _compared(workload)
    inputs = AttentionInputs(
        *(q[:1, :heads], k[:1, :heads_kv], v[:1, :heads_kv]),
        *(workload.causal, workload.head_dim**-0.5, workload.window_left),
    )
    right, _ = reference.attention(inputs, torch.float32)
    return right, (slice(1), slice(heads))


def _truth_packed(workload: Workload, tensors: Tensors) -> tuple[Any, tuple[slice, slice]]:
    """The fp32 result of some heads of all sequences, and their place in an output."""
    q, k, v, cu_seqlens_q, cu_seqlens_k = tensors
    heads, heads_kv = _compared(workload)
    inputs = AttentionInputs(
        *(q[:, :heads], k[:, :heads_kv], v[:, :heads_kv]),
        *(workload.causal, workload.head_dim**-0.5),
        cu_seqlens=(cu_seqlens_q, cu_seqlens_k),
    )
    right, _ = reference.attention(inputs, torch.float32)
    return right, (slice(None), slice(heads))


def _compared(workload: Workload) -> tuple[int, int]:
    """How many query heads and KV heads are compared: those of two groups, or of the only one."""
    heads = min(workload.heads, 2 * workload.group)
    return heads, heads // workload.group


@dataclass(frozen=True)
class Replay:
    """A CUDA graph of a call, and the call, which owns the tensors that the graph reads."""

    graph: torch.cuda.CUDAGraph
    call: Call

    def __call__(self) -> None:
        """Launches the graph."""
        self.graph.replay()


def captured(call: Call) -> Call:
    """The replay of a CUDA graph of the call; the call itself if it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError as error:
        print(f"not captured: {str(error).splitlines()[0]}", file=sys.stderr)
        torch.cuda.synchronize()
        return call
    return Replay(graph, call)


def made_with() -> dict[str, str]:
    """The device, and the versions of what runs on it."""
    versions = provenance.of(kernel.load("attention_fwd_triton"))
    found = {"device": driver.device(torch.cuda.current_device()).name}
    found |= {name: str(versions[name]) for name in _VERSIONS}
    cudnn: Any = torch.backends.cudnn
    found["cudnn"] = str(cudnn.version())
    for peer in metadata.distributions(name="flash-attn-4"):
        found["flash-attn-4"] = peer.version
    return found
