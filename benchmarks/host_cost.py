"""Measures what a small call costs the host: `tunefa.flash_attention`, its parts, and PyTorch's
attention.

    python benchmarks/host_cost.py [WORKLOAD ...]

The result is the host's time per call in microseconds: the median of five rows of 200 calls. The
calls of a row do not wait for the device; between rows the host waits until the device is done.

"new length each time" has calls whose length was not seen before, `LENGTHS` in a row: in a prefill
both lengths grow by one, and in a decode the keys alone. Beside it are its parts (choosing, and
choosing and planning), the memory that all these calls leave behind on the host and the device, and
how many plans and compiled configs there are in the end.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tunefa
from tunefa.compile.launch import driver
from tunefa.measure import check
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.kernel_plan import KernelPlan
from tunefa.runtime.process import Runtime
from tunefa.spec.workload import Workload

CALLS, ROWS = 200, 5
LENGTHS = 10_000
"""New lengths in a row."""
WORKLOADS = (
    "fwd_b1_h8_kv8_q256_d64_bf16_causal",
    "fwd_b1_h8_kv8_q256_d128_bf16_causal",
    "fwd_b1_h32_kv8_q1024_d128_bf16_causal",
)

DECODE = "fwd_b8_h32_kv8_q1_k1000_d128_bf16_full"


def host_us(call: Callable[[], Any]) -> float:
    """The host's time of one call in us: the median of `ROWS` rows of `CALLS` calls."""
    rows = []
    for _ in range(ROWS + 1):  # the first one warms up
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        rows.append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return round(statistics.median(rows[1:]), 2)


def parts(workload: Workload, tensors: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """The parts of a call that a kernel serves, by name; none if PyTorch computes it."""
    q, k, v, out, lse = tensors
    given = Tensors(q, k, v)
    runtime = Runtime()
    options = Options.of(workload.causal, workload.band, softcap=check.softcap(workload))
    plan = runtime.plan(given, options)
    if not isinstance(plan, KernelPlan):
        return {}
    shape = lse.shape
    return {
        "find the plan": lambda: runtime.plan(given, options),
        "run the plan": lambda: plan.run(given, None),
        "allocate": lambda: (torch.empty_like(q), q.new_empty(shape, dtype=torch.float32)),
        "launch": lambda: plan.launches.launch(q, k, v, out, lse),
    }


def sdpa(workload: Workload, tensors: tuple[Any, ...]) -> Callable[[], Any]:
    """PyTorch's attention on the same memory, by the backend that it chooses."""
    q, k, v = (tensor.transpose(1, 2) for tensor in tensors[:3])
    grouped = workload.heads != workload.heads_kv
    return lambda: F.scaled_dot_product_attention(
        q, k, v, is_causal=workload.causal, enable_gqa=grouped
    )


def growing(workload: Workload, device: str) -> Iterator[Tensors]:
    """Yields the tensors of calls with a new length each time, as views of a few large ones."""
    w = workload
    rows = w.seqlen_q + (LENGTHS if w.seqlen_q > 1 else 0)
    made = replace(w, seqlen_q=rows, seqlen_k=w.seqlen_k + LENGTHS)
    q, k, v = (tensor.transpose(1, 2) for tensor in check.tensors(made, device)[:3])
    for more in range(LENGTHS):
        grown = w.seqlen_q + more if w.seqlen_q > 1 else 1
        yield Tensors(q[:, :grown], k[:, : w.seqlen_k + more], v[:, : w.seqlen_k + more])


def new_lengths(workload: Workload, device: str = "cuda") -> dict[str, Any]:
    """The host's time in us of calls with a new length each time, and what they leave behind.

    Each call is timed by itself, on the host alone. The first 16 make the family known.
    """
    runtime = Runtime()
    options = Options.of(workload.causal, workload.band, softcap=check.softcap(workload))
    planned_us: list[float] = []
    whole_us: list[float] = []
    held = [(0, 0)]
    for number, tensors in enumerate(growing(workload, device)):
        if number in (LENGTHS // 2, LENGTHS - 1):  # the first half fills what is bounded
            held.append(memory(device))
        start = time.perf_counter()
        plan, scale = runtime.ready(tensors, options, None)
        middle = time.perf_counter()
        plan.output(tensors, scale)
        whole_us.append((time.perf_counter() - start) * 1e6)
        planned_us.append((middle - start) * 1e6)
        if number % 100 == 99 and device == "cuda":
            torch.cuda.synchronize()  # the queue of launches is finite, and a full one waits
    compiled = sum(len(compiler) for _, compiler in runtime.planner.devices.values())
    return {
        "choose and plan": spread(planned_us[16:]),
        "new length each time": spread(whole_us[16:]),
        "host and device MB by the first half": held[1],
        "host and device MB by the second half": held[2],
        "plans": len(runtime._plans),
        "compiled configs": compiled,
    }


def spread(us: list[float]) -> dict[str, float]:
    """The median, two percentiles and the mean."""
    cuts = statistics.quantiles(us, n=100)
    marks = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "mean": statistics.mean(us)}
    return {name: round(value, 2) for name, value in marks.items()}


def memory(device: str) -> tuple[int, int]:
    """The MB of this process, and those that PyTorch has allocated on the device."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    there = torch.cuda.memory_allocated() if device == "cuda" else 0
    return pages * resource.getpagesize() // 2**20, there // 2**20


def figures(workload: Workload) -> dict[str, float | str]:
    """The host's time in us by what was called, or the reason why it does not run here."""
    made = check.tensors(workload, "cuda")
    tensors = (*(tensor.transpose(1, 2) for tensor in made[:4]), made[4])
    q, k, v = tensors[:3]
    calls = {
        "flash_attention": lambda: tunefa.flash_attention(
            q, k, v, causal=workload.causal, window=workload.band, softcap=check.softcap(workload)
        ),
        **parts(workload, tensors),
        "sdpa": sdpa(workload, tensors),
    }
    found: dict[str, float | str] = {name: host_us(call) for name, call in calls.items()}
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            found["sdpa-cudnn"] = host_us(sdpa(workload, tensors))
    except RuntimeError as error:
        found["sdpa-cudnn"] = str(error).splitlines()[0]
    return found


def main() -> None:
    """Prints one JSON line per workload."""
    device = {"device": driver.device(0).name, "torch": torch.__version__}
    print(json.dumps({**device, "python": sys.version.split()[0], "unit": "us of host time"}))
    for text in sys.argv[1:] or WORKLOADS:
        workload = Workload.parse(text)
        print(json.dumps({"workload": str(workload), **figures(workload)}), flush=True)
        print(json.dumps({"ran": str(tunefa.last_choice())}), flush=True)
    for text in sys.argv[1:] or (*WORKLOADS, DECODE):
        workload = Workload.parse(text)
        print(json.dumps({"workload": str(workload), **new_lengths(workload)}), flush=True)


if __name__ == "__main__":
    main()
