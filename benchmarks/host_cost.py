"""Measures what a small call costs the host: `tunefa.flash_attention`, its parts, and PyTorch's
attention; and calls with lengths that were not seen before (`benchmarks/new_lengths.py`).

    python -m benchmarks.host_cost [--lengths N] [--in-turns] [WORKLOAD ...]

The result of the first part is the host's time per call in microseconds: the median of five rows of
200 calls. The calls of a row do not wait for the device; between rows the host waits until the
device is done. `WORKLOAD` are those of this part.

The second part has N calls of each kind (2,000), with another length each time: the median and
percentiles of their times in microseconds, from the call to the first launch and to the return, and
what all of them leave behind in memory, plans and compiled configs. With --in-turns the kinds run
in turns, each beside PyTorch's attention: so their times compare on a host whose speed changes, and
memory is not told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tunefa
from benchmarks import new_lengths
from tunefa.compile.launch import driver
from tunefa.measure import check
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.kernel_plan import KernelPlan
from tunefa.runtime.process import Runtime
from tunefa.spec.workload import Workload

CALLS, ROWS = 200, 5
LENGTHS = 2_000
"""New lengths in a row."""
WORKLOADS = (
    "fwd_b1_h8_kv8_q256_d64_bf16_causal",
    "fwd_b1_h8_kv8_q256_d128_bf16_causal",
    "fwd_b1_h32_kv8_q1024_d128_bf16_causal",
)


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


def print_in_turns(count: int, clock: new_lengths.LaunchClock) -> None:
    """Prints one JSON line per kind of calls, and one of PyTorch's attention beside them."""
    workload = Workload.parse(WORKLOADS[1])
    made = check.tensors(workload, "cuda")
    beside = sdpa(workload, tuple(tensor.transpose(1, 2) for tensor in made[:4]))
    found, peer = new_lengths.in_turns(new_lengths.KINDS, count, clock, beside)
    for kind, each in zip(new_lengths.KINDS, found, strict=True):
        print(json.dumps({"new lengths": kind.name, "from": kind.workload, **each}), flush=True)
    print(json.dumps({"sdpa beside them": str(workload), "call to return": peer}), flush=True)


def main() -> None:
    """Prints one JSON line per workload, and one per kind of calls with new lengths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--lengths", type=int, default=LENGTHS, metavar="N")
    parser.add_argument("--in-turns", action="store_true", help="all kinds in turns, beside sdpa")
    given = parser.parse_args()
    if not driver.devices():
        parser.error("it times launches on a GPU, and this machine has none")
    clock = new_lengths.LaunchClock()
    device = {"device": driver.device(0).name, "torch": torch.__version__}
    print(json.dumps({**device, "python": sys.version.split()[0], "unit": "us of host time"}))
    for text in given.workloads or WORKLOADS:
        workload = Workload.parse(text)
        print(json.dumps({"workload": str(workload), **figures(workload)}), flush=True)
        print(json.dumps({"ran": str(tunefa.last_choice())}), flush=True)
    if given.in_turns:
        print_in_turns(given.lengths, clock)
        return
    for kind in new_lengths.KINDS:
        found = new_lengths.figures(kind, given.lengths, clock)
        print(json.dumps({"new lengths": kind.name, "from": kind.workload, **found}), flush=True)
        print(json.dumps({"ran": str(tunefa.last_choice())}), flush=True)


if __name__ == "__main__":
    main()
