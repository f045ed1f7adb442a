"""Runs calls of random shapes for a while, on several threads and streams, to find memory leaks.

    python -m benchmarks.soak --minutes 10

In each round, two threads make calls on four streams. The calls are chosen from 6,000 that are
drawn once, with random lengths, batches, groups of heads, dtypes, masks, layouts and strides, and
with packed sequences, windows, soft-caps and scales. So all binaries are compiled after a few
rounds, while plans are made and dropped. Some outputs are compared with fp32. After a round, the
host waits for the device and empties PyTorch's cache; what is then left of the host's memory (RSS)
and of the device's is in use. It may grow in the first third of the rounds, while binaries are
compiled and plans are kept. If it grows by more than --allow-mb after that, there is a leak. The
exit status is 1 for a leak or a wrong output.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tunefa
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import TOLERANCE
from tunefa.runtime.call import Call, Options, Tensors, heads_first

THREADS, STREAMS = 2, 4
CALLS = 400
"""The calls of each thread in a round."""
DISTINCT = 6000
"""The number of different calls: more than the runtime keeps plans for."""
CHECK_EVERY = 20
WARM_UP = 1 / 3
"""The part of the rounds in which memory may grow."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "window": {"window": (70, 30)},
    "softcap": {"softcap": 20.0},
    "scale": {"scale": 0.2},
    "packed": {},
}
"""The further arguments of each kind of call. Packed calls use `flash_attention_varlen`."""


@dataclass(frozen=True)
class RandomCall:
    """One call, with its tensors' shapes and memory layout."""

    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    dtype: str
    causal: bool
    bhsd: bool
    """Whether heads come before seqlen, in shape and in memory."""
    offset: int
    """Elements before the tensor in its memory; with an odd number it is not aligned."""
    padding: int
    """Unused elements between rows, as in a slice of a wider tensor."""
    kind: str = "plain"
    """One of `KINDS`."""

    @classmethod
    def draw(cls, chance: random.Random) -> RandomCall:
        """Draws a call. Properties that need a binary of their own have few values."""
        group, heads_kv = chance.choice([1, 1, 4, 7]), chance.randint(1, 4)
        seqlen_q = chance.choice([1, chance.randint(2, 200), chance.randint(200, 1500)])
        kind = chance.choice(["plain"] * 3 + list(KINDS))
        dtypes = [name for name in DTYPES if kind != "packed" or name != "e4m3"]
        return cls(
            batch=chance.randint(1, 3),
            heads=group * heads_kv,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=chance.choice([seqlen_q, chance.randint(1, 1500)]),
            head_dim=chance.choice([64, 128]),
            dtype=chance.choice(dtypes),
            causal=chance.random() < 0.5,
            bhsd=chance.random() < 0.5,
            offset=chance.choice([0, 0, 0, 1]),
            padding=chance.choice([0, 64]),
            kind=kind,
        )

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Random q, k and v."""
        return (
            self._tensor(device, self.heads, self.seqlen_q),
            self._tensor(device, self.heads_kv, self.seqlen_k),
            self._tensor(device, self.heads_kv, self.seqlen_k),
        )

    def _tensor(self, device: str, heads: int, seqlen: int) -> Tensor:
        rows = (self.batch, heads, seqlen) if self.bhsd else (self.batch, seqlen, heads)
        row = self.head_dim + self.padding
        count = rows[0] * rows[1] * rows[2] * row
        memory = torch.randn(self.offset + count, device=device).to(DTYPES[self.dtype])
        return memory[self.offset :].view(*rows, row)[..., : self.head_dim]

    def run(self, device: str, compared: bool) -> str | None:
        """Calls tunefa; returns what is wrong with the output, if it is `compared`, else None."""
        out, expected = (self._packed if self.kind == "packed" else self._dense)(device)
        if not compared:
            return None
        right = expected()
        error = float((out.float() - right).norm() / right.norm().clamp_min(1e-30))
        limit = TOLERANCE[self.dtype]
        return None if error <= limit else f"error {error:.1e} (limit {limit:.0e}): {self}"

    def _dense(self, device: str) -> tuple[Tensor, Callable[[], Tensor]]:
        """Returns tunefa's output, heads first, and a function that computes the right one."""
        q, k, v = self.tensors(device)
        given = {"causal": self.causal, **KINDS[self.kind]}
        layout: Any = "bhsd" if self.bhsd else "bshd"
        out = tunefa.flash_attention(q, k, v, **given, layout=layout)
        call = Call.of(
            Tensors(q, k, v),
            Options.of(self.causal, given.get("window"), layout, given.get("softcap")),
            given.get("scale"),
        )
        return heads_first(out, layout), lambda: reference.attention(call, torch.float32)[0]

    def _packed(self, device: str) -> tuple[Tensor, Callable[[], Tensor]]:
        """Returns the same for three packed sequences, the second of them empty."""
        q, k, v = (
            (tensor.transpose(1, 2) if self.bhsd else tensor).flatten(0, 1)
            for tensor in self.tensors(device)
        )
        bounds = [
            torch.tensor([0, each.shape[0] // 3, each.shape[0] // 3, each.shape[0]], device=device)
            for each in (q, k)
        ]
        starts = [each.int() for each in bounds]
        out = tunefa.flash_attention_varlen(
            *(q, k, v, starts[0], starts[1], q.shape[0], k.shape[0]), causal=self.causal
        )
        inputs = AttentionInputs(
            *(q, k, v, self.causal, self.head_dim**-0.5), cu_seqlens=(starts[0], starts[1])
        )
        return out, lambda: reference.attention(inputs, torch.float32)[0]


@dataclass(frozen=True)
class Reading:
    """The memory in use after a round, in MB."""

    host: float
    device: float

    @classmethod
    def now(cls) -> Reading:
        """Reads the memory in use, after waiting for the device and freeing what can be freed."""
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, (total - free) / 1e6)


def growth(readings: Sequence[Reading]) -> Reading:
    """How much memory has grown since the warm-up: the maximum of the second half of the readings,
    minus that of the first half.

    Raises ValueError if there are too few readings.
    """
    warm = readings[round(WARM_UP * len(readings)) :]
    half = len(warm) // 2
    if half < 2:
        raise ValueError(f"{len(readings)} rounds are too few to tell: give more minutes")
    first, second = warm[:half], warm[half:]
    return Reading(
        max(r.host for r in second) - max(r.host for r in first),
        max(r.device for r in second) - max(r.device for r in first),
    )


def run_round(
    pool: ThreadPoolExecutor,
    streams: Sequence[torch.cuda.Stream],
    cases: Sequence[RandomCall],
    seed: int,
) -> list[str]:
    """Runs one round; returns what is wrong with the outputs of all threads."""

    def calls(thread: int) -> list[str]:
        chance = random.Random(f"{seed} {thread}")
        wrong = []
        for number in range(CALLS):
            with torch.cuda.stream(chance.choice(streams)):
                wrong.append(chance.choice(cases).run("cuda", number % CHECK_EVERY == 0))
        return [each for each in wrong if each]

    return [each for found in pool.map(calls, range(THREADS)) for each in found]


def main() -> None:
    """Runs the rounds; prints a line for each, and whether the test has passed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--allow-mb", type=float, default=64.0, help="default: 64")
    options = parser.parse_args()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]  # type: ignore[no-untyped-call]
    cases = [RandomCall.draw(random.Random(f"{options.seed} {n}")) for n in range(DISTINCT)]
    readings: list[Reading] = []
    wrong: list[str] = []
    until = time.monotonic() + 60 * options.minutes
    with ThreadPoolExecutor(THREADS) as pool:
        while time.monotonic() < until:
            wrong += run_round(pool, streams, cases, options.seed + len(readings))
            readings.append(Reading.now())
            host, device = readings[-1].host, readings[-1].device
            print(f"round {len(readings)}: host {host:.0f} MB, device {device:.0f} MB", flush=True)
    grown = growth(readings)
    print(*wrong, sep="\n")
    calls = THREADS * CALLS * len(readings)
    print(
        f"{calls} calls, {calls // CHECK_EVERY} compared, {len(wrong)} wrong; after the warm-up "
        f"the host kept {grown.host:+.1f} MB and the device {grown.device:+.1f} MB more"
    )
    leaked = max(grown.host, grown.device) > options.allow_mb
    print("FAILED" if leaked or wrong else "passed")
    sys.exit(leaked or bool(wrong))


if __name__ == "__main__":
    main()
