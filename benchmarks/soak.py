"""Runs calls of random shapes for a while, on several threads and streams, to find memory leaks.

    python -m benchmarks.soak --minutes 10
    python -m benchmarks.soak --minutes 8 --backward

In each round, two threads make calls on four streams. The calls are chosen from 6,000 that are
drawn once: 60 families with random groups of heads, dtypes, masks, layouts and strides, packed
sequences, windows, soft-caps and scales, and 100 lengths and batches of each. A round has calls of
12 families, of which the next one drops the first four: the runtime keeps about as many families,
and drops and makes some in each round. Binaries for aligned tensors are compiled in all cores
first. Some outputs are compared with fp32.
With --backward each call is a step of training in bf16, dense or packed: its gradients are
computed, and compared.

After a round, the host waits for the device, empties PyTorch's cache and gives free memory back to
the system; what is then left of the host's memory (RSS) and of the device's is in use. A line also
says what malloc and Python have handed out: a leak is where these grow. Memory may grow in the
first third of the rounds, and in the first FILLING ones, while binaries are loaded and plans are
kept. If it grows by more than --allow-mb after that, or the number of plans by more than
ALLOW_PLANS, there is a leak. The exit status is 1 for a leak or a wrong result.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from benchmarks import host_memory, soak_binaries
from benchmarks.compiled_ahead import compile_all
from benchmarks.random_calls import RandomCall, TrainingStep
from tunefa.runtime import process
from tunefa.spec.target import Target

THREADS, STREAMS = 2, 4
CALLS = 400
"""The calls of each thread in a round."""
FAMILIES, AT_ONCE, CHANGED = 60, 12, 4
"""The families of calls, those of a round, and those that the next round has not."""
LENGTHS = 100
"""The calls of a family, with different lengths and batches."""
DISTINCT = FAMILIES * LENGTHS
"""The number of different calls: more than the runtime keeps plans for."""
CHECK_EVERY = 20
WARM_UP = 1 / 3
"""The part of the rounds in which memory may grow."""
FILLING = 2 * DISTINCT // (THREADS * CALLS)
"""Rounds in which it may grow in any case: each call is made twice on average, so that the runtime
keeps as many plans as it may."""
ALLOW_PLANS = 200
"""Growth of the number of plans: a plan that holds memory of the device counts as several."""


@dataclass(frozen=True)
class Reading:
    """The memory in use after a round, in MB, and the number of plans that are kept."""

    host: float
    device: float
    plans: int = 0
    malloc: float = 0.0
    """The memory that malloc has handed out, in MB, see `benchmarks.host_memory`."""
    blocks: int = 0
    """The number of blocks that Python has handed out."""

    @classmethod
    def now(cls) -> Reading:
        """Reads the memory in use, after waiting for the device and freeing what can be freed."""
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        runtime = process.current()
        plans = len(runtime._plans) + len(runtime._backward_plans)
        host, malloc = host_memory.resident_mb(), host_memory.malloc_mb()
        return cls(host, (total - free) / 1e6, plans, malloc, host_memory.python_blocks())

    def sentence(self) -> str:
        """The reading in words."""
        return (
            f"host {self.host:.0f} MB (malloc {self.malloc:.0f} MB, {self.blocks} blocks of "
            f"Python), device {self.device:.0f} MB, {self.plans} plans"
        )

    def leaked(self, allow_mb: float) -> bool:
        """Whether such growth is a leak."""
        return max(self.host, self.device) > allow_mb or self.plans > ALLOW_PLANS


def growth(readings: Sequence[Reading], filling: int = FILLING) -> Reading:
    """The growth of all since the warm-up: the maximum of the second half of the readings, minus
    that of the first half. The warm-up has at least `filling` rounds.

    Raises ValueError if there are too few readings.
    """
    warm = readings[max(filling, round(WARM_UP * len(readings))) :]
    half = len(warm) // 2
    if half < 2:
        raise ValueError(f"{len(readings)} rounds are too few to tell: give more minutes")
    first, second = warm[:half], warm[half:]
    return Reading(
        max(r.host for r in second) - max(r.host for r in first),
        max(r.device for r in second) - max(r.device for r in first),
        max(r.plans for r in second) - max(r.plans for r in first),
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


def drawn(kind: type[RandomCall], seed: int) -> list[list[RandomCall]]:
    """Draws the calls of each family."""

    def family(number: int) -> list[RandomCall]:
        chance = random.Random(f"{seed} {number}")
        first = kind.draw(chance)
        others = [kind.draw(chance) for _ in range(LENGTHS)]
        return [
            replace(first, batch=x.batch, seqlen_q=x.seqlen_q, seqlen_k=x.seqlen_k) for x in others
        ]

    return list(map(family, range(FAMILIES)))


def of_round(families: Sequence[Sequence[RandomCall]], number: int) -> list[RandomCall]:
    """The calls that a round may have."""
    places = range(number * CHANGED, number * CHANGED + AT_ONCE)
    return [case for place in places for case in families[place % len(families)]]


def main() -> None:
    """Runs the rounds; prints a line for each, what is wrong, and whether the test has passed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--allow-mb", type=float, default=64.0, help="default: 64")
    parser.add_argument("--backward", action="store_true", help="steps of training")
    options = parser.parse_args()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]  # type: ignore[no-untyped-call]
    kind = TrainingStep if options.backward else RandomCall
    families = drawn(kind, options.seed)
    target = Target.named(torch.cuda.get_device_name())
    needed = soak_binaries.binaries(itertools.chain(*families), target)
    refused = compile_all(needed)
    print(f"{len(needed) - len(refused)} binaries compiled", *refused, sep="\n", flush=True)
    readings: list[Reading] = []
    wrong: list[str] = []
    until = time.monotonic() + 60 * options.minutes
    with ThreadPoolExecutor(THREADS) as pool:
        while time.monotonic() < until:
            cases = of_round(families, len(readings))
            found = run_round(pool, streams, cases, options.seed + len(readings))
            readings.append(Reading.now())
            print(f"round {len(readings)}: {readings[-1].sentence()}", *found, sep="\n", flush=True)
            wrong += found
    sys.exit(report(readings, wrong, options.allow_mb))


def report(readings: Sequence[Reading], wrong: Sequence[str], allow_mb: float) -> bool:
    """Prints the sums of all rounds; returns whether the test has failed."""
    grown = growth(readings)
    calls = THREADS * CALLS * len(readings)
    print(
        f"{calls} calls, {calls // CHECK_EVERY} compared, {len(wrong)} wrong; after the warm-up "
        f"the host kept {grown.host:+.1f} MB, the device {grown.device:+.1f} MB and the runtime "
        f"{grown.plans:+d} plans more"
    )
    failed = grown.leaked(allow_mb) or bool(wrong)
    print("FAILED" if failed else "passed")
    return failed


if __name__ == "__main__":
    main()
