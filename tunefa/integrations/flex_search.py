"""`search`: the fastest options of PyTorch's FlexAttention for a mask and a score function of the
user, forward and backward, measured on this machine's device.

    from tunefa.integrations import flex
    flex.search(q, k, v, score_mod, block_mask, budget_s=40)

It is tunefa's search: the space of `search_spaces/flex/`, a strategy that proposes configs, a check
of each, a race against PyTorch's own options, a journal and a record in the user's store.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tunefa.compile import provenance
from tunefa.compile.contract import CompileError
from tunefa.compile.workers import Workers
from tunefa.costmodel.estimate import estimates
from tunefa.errors import TunefaError
from tunefa.integrations import flex_calls, flex_kernels
from tunefa.integrations.flex_bench import FlexMeasured
from tunefa.integrations.flex_calls import FlexCall
from tunefa.integrations.flex_capture import captured
from tunefa.integrations.flex_check import Truth
from tunefa.integrations.flex_traced import run_of
from tunefa.measure.timing import AnyStopwatch, Stopwatch
from tunefa.runtime.argument_checks import check_tensor
from tunefa.runtime.chip import Chip
from tunefa.search import loop, strategies
from tunefa.search.budget import Budget
from tunefa.search.share import Share
from tunefa.search.stopping import StoppingRule
from tunefa.search.strategy import SearchProblem
from tunefa.search.winner import Winner
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Trial, identity, time_us
from tunefa.store.journal import Journal
from tunefa.store.record import Record
from tunefa.store.results import Store, default_store

FINALISTS = 8
FORWARD_SHARE = 0.4
"""The share of the time for trials that the forward pass has where the backward pass is searched as
well, which takes longer to compile."""
RACE_S = 5.0
"""Seconds after which a race ends at its next look at the standing."""
MOST_COMPILERS = 12
"""Each compiler holds a context on the device, of some hundred MB."""


def search(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: Any = None,
    **how: Any,
) -> list[Record]:
    """Searches the options of FlexAttention for these functions, tensors and mask, and returns the
    records, which stand in the user's store: one of the forward, and one of the backward pass.

    q is (batch, heads, seqlen_q, head_dim), k and v (batch, heads_kv, seqlen_k, head_dim), on a
    CUDA device. Other keywords are `scale`, `enable_gqa` and `kernel_options` of `flex_attention`
    (these are kept beside the options that are searched), and what `Asked` has.

    Raises TunefaError without a device that tunefa knows, for calls that PyTorch computes with
    another kernel, for options that are searched and chosen by the user, where PyTorch's own
    options do not compile or are wrong, and where the journal or the store cannot be written.
    """
    asked = Asked.of(how)
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        check_tensor(name, tensor, 4, "(batch, heads, seqlen, head_dim)")
    chip = Chip.of(q.device)
    if chip.target is None:
        raise TunefaError(
            f"FlexAttention's options are searched on a device, and {chip.why_not}: move q, k, v "
            f"and the block mask to an NVIDIA GPU"
        )
    given = q, k, v, score_mod, block_mask
    stopwatch = Stopwatch("eager")
    with torch.cuda.device(q.device):
        return _search(given, asked, chip.target, stopwatch)


@dataclass(frozen=True)
class Asked:
    """The keywords of a search."""

    scale: float | None = None
    enable_gqa: bool = False
    kernel_options: Mapping[str, Any] | None = None
    backward: bool | None = None
    """Whether the gradients are searched too; None: if q, k or v requires a gradient."""
    budget_s: float = 40.0
    """Seconds for the trials. Compiling PyTorch's own options before and the races after them take
    some 10 s more."""
    prescale: bool = False
    """Whether PRESCALE_QK is searched, which rounds more; without a score function only."""
    strategy: str = "auto"
    seed: int = 0
    workers: int | None = None
    """The number of processes that compile; None: one per core, at most `MOST_COMPILERS`."""
    store: Store = field(default_factory=default_store)

    @property
    def of_call(self) -> dict[str, Any]:
        """The arguments of `flex_attention`."""
        own = None if self.kernel_options is None else dict(self.kernel_options)
        return {"scale": self.scale, "enable_gqa": self.enable_gqa, "kernel_options": own}

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> Asked:
        """Raises TunefaError for an unknown keyword and for a budget that is not positive."""
        known = cls.__dataclass_fields__
        for name in named:
            if name not in known:
                raise TunefaError(f"unknown argument {name!r}: known are {', '.join(known)}")
        made = cls(**named)
        if not (isinstance(made.budget_s, (int, float)) and made.budget_s > 0):
            raise TunefaError(f"budget_s is {made.budget_s!r}: give a positive number of seconds")
        return made


@dataclass
class _Part:
    """The search of one op."""

    case: Case
    objective: FlexMeasured
    default: Config | None
    flop_share: float
    """The share of all pairs of rows and keys that lie in blocks which the mask leaves."""
    trials: dict[tuple[object, ...], Trial] = field(default_factory=dict)

    def keep(self, journal: Journal, trial: Trial) -> None:
        """Writes a trial to the journal."""
        journal.append(self.case.kernel.name, trial)
        self.trials[identity(trial.config)] = trial

    def finalists(self) -> list[Trial]:
        """The best trials, and PyTorch's own options."""
        right = sorted((t for t in self.trials.values() if t.outcome == "ok"), key=time_us)
        return right[:FINALISTS] + [t for t in right[FINALISTS:] if t.config == self.default]


def _search(given: Any, asked: Asked, target: Target, stopwatch: AnyStopwatch) -> list[Record]:
    """Searches on a target that is there."""
    count = asked.workers or min(MOST_COMPILERS, os.cpu_count() or 1)
    with ExitStack() as stack:
        compilers = stack.enter_context(Workers(count))
        for _ in range(count):  # they import PyTorch meanwhile
            compilers.submit(_warm_up, (), 60.0)
        calls = captured(given, asked.backward, **asked.of_call)
        parts = [_part(call, asked, target, (compilers, stopwatch)) for call in calls]
        journals = [stack.enter_context(_journal(part, asked)) for part in parts]
        budget = Budget(seconds=asked.budget_s)
        shares = [FORWARD_SHARE, 1.0][-len(parts) :]
        for part, share, journal in zip(parts, shares, journals, strict=True):
            for trial in _trials(part, asked, budget, share):
                part.keep(journal, trial)
            part.objective.abandon()
        compilers.stop()  # other processes on the device would disturb the races
        records = []
        for part, journal in zip(parts, journals, strict=True):
            records.append(_raced(part, asked, journal))
    for record in records:
        asked.store.add(record)
    return records


def _part(
    call: FlexCall, asked: Asked, target: Target, tools: tuple[Workers, AnyStopwatch]
) -> _Part:
    """The search of one call. Raises TunefaError where PyTorch's own options fail."""
    workload = flex_calls.workload_of(call)
    assert workload is not None  # `require` has seen to it
    kernel = flex_kernels.kernel_of(call, asked.prescale)
    try:
        truth = Truth(call, run_of(call, {}))
    except CompileError as error:
        raise TunefaError(f"PyTorch's own options do not compile for this call: {error}") from error
    objective = FlexMeasured(call, truth, *tools)
    default = flex_kernels.default(call, kernel)
    return _Part(Case(kernel, workload, target), objective, default, flex_calls.visible(call))


def _trials(part: _Part, asked: Asked, budget: Budget, share: float) -> Iterator[Trial]:
    """Yields the trials of one op: PyTorch's own options first, then what the strategy proposes."""
    feasible = part.case.feasible()
    if part.default is not None:
        yield part.objective.judge(part.default)
    problem = SearchProblem(
        parameters=part.case.kernel.space.parameters,
        configs=feasible.configs,
        expected_us=[each.time_us for each in estimates(part.case, feasible.configs)],
        first=(),
        trials=None,
        seed=asked.seed,
    )
    if not feasible.configs:
        return
    with _quiet():
        strategy = strategies.create(asked.strategy, problem)
    for trial in part.trials.values():
        strategy.tell(trial)
    until = Share(budget, share, 0, part.objective.reserve_s)
    stopping = StoppingRule().resumed(list(part.trials.values()))
    for trial in loop.trials(strategy, part.objective, until, stopping):
        yield trial
        strategy.tell(trial)


def _raced(part: _Part, asked: Asked, journal: Journal) -> Record:
    """The record of the winner of the race. Raises TunefaError where no config is right."""
    raced = part.objective.race(part.finalists(), part.default, time.monotonic() + RACE_S)
    for trial in raced.trials:
        part.keep(journal, trial)
    if raced.winner is None:
        reasons = "; ".join(dict.fromkeys(t.reason for t in part.trials.values()))
        raise TunefaError(f"no options of {part.case.kernel.name} are right: {reasons[:500]}")
    winner = Winner(part.case.kernel, raced.winner, raced.certificate, "eager", "measured")
    notes = {"trials": len(part.trials), "strategy": asked.strategy}
    device = part.case.device.name
    made = winner.record(part.case.workload, part.case.arch, device, notes)
    check = f"relative error {raced.winner.error:.1e} against fp64 on the device"
    checked = {**made.provenance, "check": check}
    return replace(made, tflops=made.tflops * part.flop_share, provenance=checked)


def _journal(part: _Part, asked: Asked) -> Journal:
    """A new journal, with what is searched."""
    case = part.case
    header = {
        "workload": str(case.workload),
        "arch": case.arch.name,
        "device": case.device.name,
        "objective": "measured",
        "mode": "eager",
        "strategy": asked.strategy,
        "seed": asked.seed,
        "provenance": {case.kernel.name: provenance.of(case.kernel)},
    }
    return Journal(f"{case.arch.name}-{case.kernel.name}-{case.workload}", header)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Lets Optuna print warnings alone: it would say that there is a study."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _warm_up() -> None:
    """Imports what compiles FlexAttention, which takes seconds."""
    import torch._inductor.compile_fx
    import torch._inductor.kernel.flex.flex_attention

    if torch.cuda.is_available():
        torch.cuda.synchronize()
