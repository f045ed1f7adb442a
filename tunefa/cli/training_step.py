"""`tunefa search --forward-backward`: the searches for the two passes of a training step.

The kernels of the two passes are independent: a forward kernel writes the output and the logsumexp,
whichever config it has, and a backward kernel reads them. So the least time of a step is the sum of
the least times, and the step is searched as two searches that share one budget.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tunefa.cli.workload_options import Selection
from tunefa.spec.workload import Workload
from tunefa.spec.workload_parts import TRAINING_OPS

if TYPE_CHECKING:  # it brings what only a search needs: numpy, the process pool
    from tunefa.search.budget import Budget
    from tunefa.search.request import Request, Result

FORWARD_SHARE = 0.5
"""The part of the budget that the forward pass gets. The backward pass gets what is left."""


def selection_of_both(selection: Selection) -> Selection:
    """Returns the selection with the forward and the backward pass of each of its workloads.

    Raises click.UsageError for --backward, and for a workload that is no attention.
    """
    if "op" in selection.fields:
        given = "--backward" if selection.fields["op"] == "bwd" else "--decode"
        raise click.UsageError(f"--forward-backward searches both passes: leave out {given}")
    fields = {**selection.fields, "op": "bwd"}  # which --deterministic goes with
    texts = []
    for workload in replace(selection, fields=fields).workloads:
        if workload.op not in TRAINING_OPS:
            raise click.UsageError(f"{workload} has no backward pass: leave out --forward-backward")
        texts += [str(forward(workload)), str(replace(workload, op="bwd"))]
    return replace(selection, texts=tuple(dict.fromkeys(texts)), fields={}, models=())


def forward(workload: Workload) -> Workload:
    """Returns the forward pass of a training step."""
    return replace(workload, op="fwd", deterministic=False)


def of_step(request: Request, requests: Sequence[Request], before: Sequence[Result]) -> Request:
    """Returns one of the requests with its part of the budget, and a note for its record.

    A forward pass gets its share; a backward pass, which comes behind it, gets the rest. `before`
    are the results of the requests before it.
    """
    workload = request.workload
    if workload.op == "fwd":
        rest = (each.workload for each in requests if each.workload.op == "bwd")
        behind = next(each for each in rest if forward(each) == workload)
        note: dict[str, Any] = {"backward": str(behind)}
        budget = _part(request.budget)
    else:
        done = next(each for each in before if each.request.workload == forward(workload))
        note = {"forward": str(done.request.workload), **_found(done)}
        budget = _rest(request.budget, done)
    return replace(request, budget=budget, notes={"training_step": note})


def _part(budget: Budget) -> Budget:
    """Returns the share of the forward pass."""
    if budget.seconds is not None:
        return replace(budget, seconds=FORWARD_SHARE * budget.seconds)
    return replace(budget, trials=max(1, int(FORWARD_SHARE * (budget.trials or 1))))


def _rest(budget: Budget, done: Result) -> Budget:
    """Returns what the forward pass has left of a budget, from now on."""
    start = time.monotonic()
    if budget.seconds is not None:
        return replace(budget, seconds=max(1.0, budget.seconds - done.elapsed_s), start=start)
    return replace(budget, trials=max(1, (budget.trials or 1) - len(done.finished)), start=start)


def _found(done: Result) -> dict[str, Any]:
    """Returns what a search has found, for the record of the other pass."""
    record = done.record
    if record is None:
        return {}
    return {"kernel": record.kernel, "config": dict(record.config), "median_us": record.median_us}


@dataclass(frozen=True)
class Step:
    """The two passes of a training step, both with a record."""

    forward: Result
    backward: Result

    @property
    def passes_us(self) -> tuple[float, float]:
        """The times of the forward and the backward pass, in us."""
        records = self.forward.record, self.backward.record
        forward_us, backward_us = (0.0 if each is None else each.median_us for each in records)
        return forward_us, backward_us

    @property
    def tflops(self) -> float:
        """TFLOP/s of both passes together."""
        both = self.forward.request.workload, self.backward.request.workload
        return sum(workload.flops for workload in both) / sum(self.passes_us) / 1e6

    def to_data(self) -> dict[str, Any]:
        """Returns plain data for `--json`."""
        forward_us, backward_us = self.passes_us
        return {
            "forward": str(self.forward.request.workload),
            "backward": str(self.backward.request.workload),
            "forward_us": forward_us,
            "backward_us": backward_us,
            "sum_us": forward_us + backward_us,
            "tflops": self.tflops,
        }

    def __str__(self) -> str:
        forward_us, backward_us = self.passes_us
        return (
            f"Training step: {forward_us + backward_us:,.1f} us = forward {forward_us:,.1f} us + "
            f"backward {backward_us:,.1f} us, {self.tflops:,.1f} TFLOP/s of both passes"
        )


def steps(results: Sequence[Result]) -> list[Step]:
    """Returns the training steps whose two passes have a record, in the order of the searches."""
    found = {result.request.workload: result for result in results if result.record is not None}
    return [
        Step(found[forward(workload)], result)
        for workload, result in found.items()
        if workload.op == "bwd" and forward(workload) in found
    ]
