"""Runs a Llama of Hugging Face Transformers with PyTorch's attention and with tunefa's, in turns.

    python -m benchmarks.llama [--out FILE] [--tokens 16384] [--new 64] [--layers 8]
    python -m benchmarks.llama --variant activated --task train --no-graphs    # to trace it
    python -m benchmarks.llama --from FILE                # prints the table of a file

The model has random weights in bf16, 8 layers, 32 query heads and 8 KV heads of 128. The tasks
are `prefill`, a forward pass without gradients; `train`, forward and backward of the loss; and
`generate`, tokens after a prompt with a static cache, whose steps run as a CUDA graph, if
Transformers lets one be captured. The variants are `sdpa`, which is scaled_dot_product_attention as
PyTorch chooses its backend; `cudnn`, the same with no other backend than cuDNN's; `activated`, the
same under `tunefa.activate()`; and `tunefa`, which is attn_implementation="tunefa".

On a CPU it runs what runs there: `--device cpu --layers 1 --tokens 64 --hidden 512 --rounds 2`.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import markdown, point_files
from benchmarks.attention_kernels import DeviceTime, device_time
from benchmarks.llama_tasks import TASKS, VARIANTS, Generate, model_of, variant
from benchmarks.point_files import Point
from tunefa.errors import TunefaError

CUDA: Any = torch.cuda  # parts of it have no types


@dataclass
class Measured:
    """A task in a variant, and what was measured of it."""

    task: Any
    on_cuda: bool
    ms: list[float] = field(default_factory=list)
    extra_bytes: int = 0
    result: torch.Tensor = field(default_factory=lambda: torch.ones(1))

    def forget(self) -> None:
        """Forgets what was measured so far."""
        self.ms, self.extra_bytes = [], 0

    def time(self) -> None:
        """Runs it once, and adds the time, on the device if there is one."""
        self.task.begin()
        if not self.on_cuda:
            start = time.perf_counter()
            self.result = self.task.run()
            self.ms.append((time.perf_counter() - start) * 1e3)
            return
        before = CUDA.memory_allocated()
        CUDA.reset_peak_memory_stats()
        events = [CUDA.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        self.result = self.task.run()
        events[1].record()
        events[1].synchronize()
        self.ms.append(events[0].elapsed_time(events[1]))
        self.extra_bytes = max(self.extra_bytes, CUDA.max_memory_allocated() - before)


def measured(
    task: str, model: Any, given: argparse.Namespace
) -> tuple[dict[str, Measured], dict[str, DeviceTime], dict[str, str]]:
    """Runs a task in all variants in turns. Returns what was measured, the times of kernels, and
    why variants failed."""
    found: dict[str, Measured] = {}
    kernels: dict[str, DeviceTime] = {}
    failed: dict[str, str] = {}
    for name in given.variant:
        try:
            with variant(name, model):
                made = TASKS[task](model, given)
                found[name] = Measured(made, given.device == "cuda")
                found[name].time()
                found[name].forget()  # it made plans and compiled
        except (RuntimeError, TunefaError) as error:  # a backend that is not there, or refuses
            found.pop(name, None)
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            gc.collect()
    for turn in range(given.rounds):
        in_turn = list(found.items())
        random.Random(turn).shuffle(in_turn)
        for name, each in in_turn:
            with variant(name, model):
                each.time()
    for name, each in found.items():
        if given.device == "cuda":
            with variant(name, model):
                each.task.begin()
                kernels[name] = device_time(each.task.run)
    return found, kernels, failed


def points(task: str, model: Any, given: argparse.Namespace) -> list[Point]:
    """The figures of one task."""
    found, kernels, failed = measured(task, model, given)
    rows = [{"task": task, "variant": name, "failed": why} for name, why in failed.items()]
    first = next((each.result for each in found.values()), torch.ones(1))
    for name, each in found.items():
        ms = statistics.median(each.ms)
        row: Point = {"task": task, "variant": name, "ms": round(ms, 3)}
        row |= {"all_ms": [round(one, 3) for one in each.ms]}
        row |= {"tokens_per_s": round(each.task.tokens / ms * 1e3, 1)}
        row["difference"] = _difference(each.result, first)
        if name in kernels:
            row |= figures(kernels[name], each.extra_bytes)
        if isinstance(each.task, Generate):
            row["remark"] = each.task.remark
        rows.append(row)
    return sorted(rows, key=lambda row: VARIANTS.index(row["variant"]))


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The distance of results, relative to the second."""
    found = (one.double() - other.double()).norm() / other.double().norm()
    return float(f"{float(found):.2e}")


def figures(time: DeviceTime, extra_bytes: int) -> Point:
    """The figures of a task on a GPU: memory beside weights and caches, and its kernels."""
    largest = sorted(time.kernels.items(), key=lambda pair: -pair[1])[:12]
    return {
        "extra_gib": round(extra_bytes / 2**30, 3),
        "kernels_ms": round(time.total_ms, 3),
        "attention_ms": round(time.attention_ms, 3),
        "tunefa_ms": round(time.own_ms, 3),
        "kernels": {name[:120]: round(ms, 3) for name, ms in largest},
    }


def table(rows: Sequence[Point]) -> str:
    """A row for each task and variant."""
    head = ["task", "variant", "ms", "tokens/s", "extra GiB", "attention ms"]
    head += ["of all kernels", "in tunefa's", "differs by"]
    lines = [head]
    for row in rows:
        name = [row["task"], row["variant"]]
        if "failed" in row:
            lines.append([*name, row["failed"], *[""] * (len(head) - 3)])
            continue
        cells = [f"{row['ms']:,.2f}", f"{row['tokens_per_s']:,.0f}"]
        if "attention_ms" in row:
            attention = row["attention_ms"]
            cells += [f"{row['extra_gib']:.2f}", f"{attention:,.2f}"]
            cells += [_share(attention, row["kernels_ms"]), _share(row["tunefa_ms"], attention)]
        else:
            cells += [""] * 4
        lines.append([*name, *cells, f"{row['difference']:.1e}"])
    remarks = [f"{row['variant']}: {row['remark']}" for row in rows if "remark" in row]
    return "\n".join([markdown.table(lines), *remarks])


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=Path, dest="recorded")
    parser.add_argument("--device", default="cuda" if CUDA.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=16_384, help="of the prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens that are generated")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=4096, help="a multiple of 256")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", nargs="+", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--variant", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--no-graphs", action="store_true", help="call each step of a generation")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.recorded:
        print(table(point_files.read(given.recorded)))
        return
    import transformers

    start, model, rows = time.perf_counter(), model_of(given), []
    for task in given.task:
        rows += points(task, model, given)
        gc.collect()
        if given.device == "cuda":
            CUDA.empty_cache()
        print(f"{task}: {time.perf_counter() - start:.0f} s", flush=True)
    print(table(rows))
    asked = {name: getattr(given, name) for name in ("tokens", "new", "layers", "hidden")}
    asked["device"] = CUDA.get_device_name() if given.device == "cuda" else "cpu"
    point_files.write(given.out, rows, transformers=transformers.__version__, **asked)


if __name__ == "__main__":
    main()
