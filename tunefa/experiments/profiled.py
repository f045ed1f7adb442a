"""A process that makes one call under a profiler: `python -m tunefa.experiments.profiled`.

The tensors come from a seed, and the call is made a few times before it is profiled, so that
nothing is compiled or loaded then. The profile holds one call, between cudaProfilerStart and
cudaProfilerStop, in an NVTX range with the contestant's name, such as `tunefa:operators`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload

OURS = "tunefa"
WARMUP = 3
"""Calls before the one that is profiled."""


def command(workload: Workload, contestant: str = OURS, seed: int = 0) -> list[str]:
    """Returns the command that makes one call of a contestant, `tunefa` or the name of a peer."""
    return [sys.executable, "-m", __name__, str(workload), contestant, str(seed)]


def range_name(contestant: str) -> str:
    """Returns the name of a contestant's range in profiles."""
    return contestant if contestant == OURS else f"{OURS}:{contestant}"


def call_of(
    workload: Workload, contestant: str = OURS, device: str = "cuda", seed: int = 0
) -> Callable[[], Any]:
    """Returns a contestant's call on new tensors, after its warm-up.

    Raises TunefaError where the contestant is unknown, does not serve the workload, or where there
    is no such device.
    """
    import torch

    from tunefa.experiments import ours
    from tunefa.measure import check, peers

    if device == "cuda" and not torch.cuda.is_available():
        raise TunefaError("PyTorch sees no GPU here: run this on a machine that has one")
    if workload.op != "fwd":
        raise TunefaError(f"only forward passes are profiled, and {workload} is of {workload.op}")
    make = ours.maker() if contestant == OURS else peers.load(contestant).make
    made = check.tensors(workload, device, seed)
    try:
        call: Callable[[], Any] = make(workload, (*made[:3], *made[5:]))
    except peers.Unserved as error:
        raise TunefaError(f"{contestant} does not serve {workload}: {error}") from error
    for _ in range(WARMUP):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return call


def main(words: Sequence[str]) -> None:
    """Makes the call of `command`."""
    import torch

    text, contestant, seed = words
    call = call_of(Workload.parse(text), contestant, seed=int(seed))
    profiler: Any = torch.cuda.profiler
    profiler.start()
    with torch.cuda.nvtx.range(range_name(contestant)):
        call()
    torch.cuda.synchronize()
    profiler.stop()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TunefaError as failure:
        sys.exit(f"tunefa: {failure}")
