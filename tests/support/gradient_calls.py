"""Gradients of one family of calls, for a runtime whose H200 is the CPU."""

from __future__ import annotations

import random

import torch

from tunefa.measure.gradients import Gradients
from tunefa.runtime import backward
from tunefa.runtime.backward import Backward, KernelGradients
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized_gradients import ResizedGradientPlan

Asked = tuple[Tensors, Gradients]


class GradientCalls:
    """Calls with these heads, on views of a few large tensors. Nothing reads their values."""

    def __init__(
        self, heads: int = 8, heads_kv: int = 2, causal: bool = True, layout: str = "bshd",
        head_dim: int = 128, most: int = 700,
    ) -> None:  # fmt: skip
        self.options = Options(causal, layout=layout)
        shapes = heads, heads_kv, heads_kv, heads, heads
        self.whole = [torch.empty(3, most, each, head_dim, dtype=torch.bfloat16) for each in shapes]

    def of(
        self, batch: int, rows: int, keys: int, whole: bool = False, dlse: bool = False
    ) -> Asked:
        """One call; `whole`: its tensors are contiguous, and not parts of larger ones."""
        counts = rows, keys, keys, rows, rows
        found = [x[:batch, :n] for x, n in zip(self.whole, counts, strict=True)]
        if self.options.layout == "bhsd":
            found = [x.transpose(1, 2) for x in found]
        q, k, v, out, grad = (x.contiguous() if whole else x for x in found)
        lse = torch.empty(batch, self.whole[0].shape[2], rows)
        of_lse = torch.empty(2, *lse.shape)[1] if dlse else None
        return Tensors(q, k, v), Gradients(out, lse, grad, of_lse)

    def random(self, chance: random.Random, dlse: bool = False) -> Asked:
        """One with random lengths, which blocks divide or not."""
        keys = chance.choice([1, 64, 128]) * chance.randint(1, 5) + chance.choice([0, 0, 3])
        rows = max(64, chance.choice([keys, keys, chance.randint(1, keys)]))
        return self.of(chance.randint(1, 3), rows, keys, chance.random() < 0.5, dlse)


def plan_of(runtime: Runtime, calls: GradientCalls, asked: Asked) -> backward.BackwardPlan:
    """The runtime's plan for a call."""
    return runtime.backward_plan(asked[0], calls.options, asked[1])


def resized(
    runtime: Runtime, calls: GradientCalls, count: int, seed: int = 0, dlse: bool = False
) -> list[tuple[ResizedGradientPlan, Asked]]:
    """So many plans that follow lengths, with their calls."""
    chance, found = random.Random(seed), list[tuple[ResizedGradientPlan, Asked]]()
    for _ in range(5 * count + 20):
        asked = calls.random(chance, dlse)
        plan = plan_of(runtime, calls, asked)
        if isinstance(plan, ResizedGradientPlan):
            found.append((plan, asked))
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} of {5 * count + 20} plans follow lengths")


def made_anew(runtime: Runtime, calls: GradientCalls, asked: Asked) -> KernelGradients:
    """The plan that is made for a call alone."""
    made = runtime.planner.plan(Backward(Call.of(asked[0], calls.options, None), asked[1]))
    assert isinstance(made, KernelGradients)
    return made
