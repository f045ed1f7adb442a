"""Calls whose lengths were not seen before, and what they cost the host: `python -m
benchmarks.host_cost` prints it.

A call is timed from its begin to the first launch of a kernel, and to its return. In a prefill both
lengths grow by one from call to call, over a cache and with few queries the keys alone.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import tunefa
from benchmarks import host_memory
from tunefa.compile.launch import driver
from tunefa.measure.gradients import Gradients
from tunefa.runtime import process
from tunefa.runtime.call import Options, Tensors
from tunefa.spec.workload import Workload

FIRST = 16
"""Calls that make a family known, and are not counted."""
REPEATED, CALLS_BEFORE = 8, 20
"""Every so-manieth length is called this often, before a call of a known length is timed."""
TURN = 20
"""Calls of one kind that follow one another, where kinds run in turns."""
Call = Callable[[], Any]


@dataclass(frozen=True)
class Kind:
    """A kind of calls, with the shape of the first one."""

    name: str
    workload: str
    calls: Callable[[Workload, int, str], Iterator[Call]]
    """Yields so many calls on a device, each with a length of its own."""


def _views(w: Workload, more: int, device: str) -> tuple[torch.Tensor, ...]:
    """(q, k, v) as (batch, seqlen, heads, head_dim), with room for so many more rows and keys."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[w.dtype]
    rows = w.seqlen_q + (more if w.seqlen_q > 1 else 0)
    shapes = (rows, w.heads), (w.seqlen_k + more, w.heads_kv), (w.seqlen_k + more, w.heads_kv)
    q, k, v = (
        torch.randn(w.batch, *each, w.head_dim, device=device, dtype=kind) for each in shapes
    )
    return q, k, v


def _grown(w: Workload, count: int, device: str) -> Iterator[Tensors]:
    q, k, v = _views(w, count, device)
    for more in range(count):
        rows, keys = w.seqlen_q + (more if w.seqlen_q > 1 else 0), w.seqlen_k + more
        yield Tensors(q[:, :rows], k[:, :keys], v[:, :keys])


def dense(w: Workload, count: int, device: str) -> Iterator[Call]:
    """Calls of `flash_attention`."""
    for q, k, v, *_ in _grown(w, count, device):
        yield partial(tunefa.flash_attention, q, k, v, causal=w.causal)


def trained(w: Workload, count: int, device: str) -> Iterator[Call]:
    """Calls of `flash_attention` with q, k and v that require gradients."""
    for given in _grown(w, count, device):
        q, k, v = (each.requires_grad_() for each in given[:3])
        yield partial(tunefa.flash_attention, q, k, v, causal=w.causal)


def packed(w: Workload, count: int, device: str) -> Iterator[Call]:
    """Calls of `flash_attention_varlen` whose longest sequence grows."""
    q, k, v = (each.flatten(0, 1) for each in _views(w, count, device))
    for more in range(count):
        rows = w.seqlen_q + more
        starts = torch.arange(w.batch + 1, device=device, dtype=torch.int32) * rows
        parts, most = [each[: w.batch * rows] for each in (q, k, v)], (rows, rows)
        given = *parts, starts, starts, *most
        yield partial(tunefa.flash_attention_varlen, *given, causal=w.causal)


def cached(w: Workload, count: int, device: str) -> Iterator[Call]:
    """Calls of `decode_attention` over one cache, of which each call has one key more."""
    q, k, v = _views(w, count, device)
    lengths = torch.full((w.batch,), w.seqlen_k, device=device, dtype=torch.int32)
    for more in range(count):
        yield partial(tunefa.decode_attention, q, k, v, lengths + more)


def grown_cache(w: Workload, count: int, device: str) -> Iterator[Call]:
    """Calls of `decode_attention` over a cache that is one key longer in each."""
    for q, k, v, *_ in _grown(w, count, device):
        lengths = torch.full((w.batch,), k.shape[1], device=device, dtype=torch.int32)
        yield partial(tunefa.decode_attention, q, k, v, lengths)


def gradients(w: Workload, count: int, device: str) -> Iterator[Call]:
    """The backward passes of calls of `flash_attention`, as autograd starts them."""
    options = Options.of(w.causal, None)
    for given in _grown(w, count, device):
        out, lse = tunefa.flash_attention(*given[:3], causal=w.causal, return_lse=True)
        of_out = Gradients(out, lse, torch.ones_like(out), None)
        yield partial(process.current().gradients, given, options, None, of_out)


KINDS = (
    Kind("flash_attention", "b1_h8_kv8_q256_d128_causal", dense),
    Kind("flash_attention, grouped heads", "b1_h32_kv8_q1024_d128_causal", dense),
    # The heads are others than those of the first, whose lengths are known by then.
    Kind("flash_attention, requires_grad", "b1_h16_kv16_q256_d128_causal", trained),
    Kind("one query", "b16_h32_kv8_q1_k1000_d128_full", dense),
    Kind("few queries", "b8_h32_kv8_q1_k1024_d128_full", dense),
    Kind("flash_attention_varlen", "b4_h32_kv8_q300_d128_causal", packed),
    Kind("decode_attention", "b16_h32_kv8_q1_k1000_d128", cached),
    Kind("decode_attention, another cache", "b16_h32_kv8_q1_k1000_d128", grown_cache),
    Kind("gradients", "b1_h8_kv8_q256_d128_causal", gradients),
)


class LaunchClock:
    """Notes when kernels are launched. Only launches that are prepared afterwards are seen."""

    def __init__(self) -> None:
        self.first = 0.0
        """The time when the first kernel since `start` was launched; 0 for none."""
        libcuda = driver.load()
        launch = libcuda.launch

        def noted(*arguments: Any) -> Any:
            if not self.first:
                self.first = time.perf_counter()
            return launch(*arguments)

        libcuda.launch = noted

    def start(self) -> float:
        """Returns the time, and waits for the next launch."""
        self.first = 0.0
        return time.perf_counter()


class Timed:
    """Calls of one kind with new lengths, each timed by itself."""

    def __init__(self, kind: Kind, count: int, clock: LaunchClock, device: str) -> None:
        self._calls = enumerate(kind.calls(Workload.parse(kind.workload), count, device))
        self._clock, self._device = clock, device
        self._to_launch: list[float] = []
        self._to_return: list[float] = []
        self._known: list[float] = []

    def go(self, count: int) -> None:
        """Times so many more calls, and each eighth one again."""
        for number, call in itertools.islice(self._calls, count):
            _time(call, self._clock, self._to_launch, self._to_return)
            if number % REPEATED == 0:
                for _ in range(CALLS_BEFORE):
                    call()
                _time(call, self._clock, [], self._known)
            if number == FIRST:
                for each in (self._to_launch, self._to_return, self._known):
                    each.clear()
            if number % 100 == 99 and self._device == "cuda":
                torch.cuda.synchronize()  # the queue of launches is finite, and a full one waits

    def figures(self) -> dict[str, Any]:
        """The times in us. "known length" has a later call of every eighth length, and "launched"
        says how many of the calls started a kernel of tunefa's."""
        return {
            "call to launch": spread(self._to_launch),
            "call to return": spread(self._to_return),
            "known length, call to return": spread(self._known),
            "launched": len(self._to_launch) / len(self._to_return),
        }


def figures(kind: Kind, count: int, clock: LaunchClock, device: str = "cuda") -> dict[str, Any]:
    """The host's times in us of so many calls with new lengths, and what they leave behind."""
    timed = Timed(kind, count, clock, device)
    timed.go(count // 2)  # the first half fills what is bounded
    first = memory(device)
    timed.go(count - count // 2)
    runtime = process.current()
    return {
        **timed.figures(),
        "host and device MB by the first half": first,
        "host and device MB by the second half": memory(device),
        "plans": len(runtime._plans) + len(runtime._backward_plans) + len(runtime.caches.plans),
        "compiled configs": sum(len(each) for _, each in runtime.planner.devices.values()),
    }


def in_turns(
    kinds: Sequence[Kind], count: int, clock: LaunchClock, beside: Call, device: str = "cuda"
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The figures of each kind, and the times of `beside` in us. Kinds run in turns of TURN calls,
    each turn behind TURN calls of `beside`: a host's speed changes within seconds."""
    timed = [Timed(kind, count, clock, device) for kind in kinds]
    peer: list[float] = []
    for _ in range(0, count, TURN):
        for each in timed:
            for _ in range(TURN):
                _time(beside, clock, [], peer)
            each.go(TURN)
    return [each.figures() for each in timed], spread(peer)


def _time(call: Call, clock: LaunchClock, to_launch: list[float], to_return: list[float]) -> None:
    start = clock.start()
    call()
    to_return.append((time.perf_counter() - start) * 1e6)
    if clock.first:
        to_launch.append((clock.first - start) * 1e6)


def spread(us: list[float]) -> dict[str, float]:
    """The median, two percentiles and the mean; nothing for fewer than two times."""
    if len(us) < 2:
        return {}
    cuts = statistics.quantiles(us, n=100)
    marks = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "mean": statistics.mean(us)}
    return {name: round(value, 2) for name, value in marks.items()}


def memory(device: str) -> tuple[int, int]:
    """The MB of this process, and those that PyTorch has allocated on the device."""
    gc.collect()
    there = torch.cuda.memory_allocated() if device == "cuda" else 0
    return host_memory.resident_bytes() // 2**20, there // 2**20
