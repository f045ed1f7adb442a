"""Predicts, without a device, what a search, the kernels and the runtime name for a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.predicted.rows import Answer, Prediction
from tunefa.compile import languages
from tunefa.costmodel.estimate import estimate
from tunefa.runtime import choose
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.request import Request
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store import results
from tunefa.store.prediction import Interval
from tunefa.store.record import Record
from tunefa.store.results import Store


class Without(Store):
    """A store in which some records are not found."""

    def __init__(self, roots: Sequence[Path], hidden: Callable[[Record], bool]) -> None:
        super().__init__(roots)
        self._hidden = hidden

    def records(self) -> list[Record]:
        """Returns all records but the hidden ones."""
        return [record for record in super().records() if not self._hidden(record)]


@dataclass(frozen=True)
class Blind:
    """Predicts for a target from what is known without some records."""

    target: Target
    folder: Path
    """Records of the predicted searches are written there."""
    without: str | None = None
    """The name of a device of which nothing is known; None if all devices are."""

    def store(self, workload: Workload) -> Store:
        """The shipped records, except those of this workload, in bf16 or fp16, and of the device
        that nothing is known of."""

        def is_hidden(record: Record) -> bool:
            same = replace(record.workload, dtype=workload.dtype) == workload
            return same or record.device == self.without is not None

        return Without([self.folder / str(workload), results.shipped_root()], is_hidden)

    def predicted(self, workload: Workload, budget: Budget, workers: int | None) -> Prediction:
        """The prediction for one workload, from a search with all kernels that serve it.

        Raises TunefaError if no kernel serves it or one cannot be compiled, and ValueError if the
        search finds nothing.
        """
        store, serving = self.store(workload), kernels.serving(workload, self.target.arch)
        for why in languages.without_compiler(serving, self.target.arch).values():
            raise ValueError(why)
        choice = choose.choose(store, workload, self.target, serving)
        asked = Request(workload, self.target, False, tuple(serving), budget, workers=workers)
        result = search.search(asked, store)
        if result.interrupted:
            raise KeyboardInterrupt
        if result.record is None:
            raise ValueError("the search found nothing that is right")
        trials = {
            (each.kernel, identity(each.trial.config)): each.trial for each in result.finished
        }
        known = {kernel.name: Case(kernel, workload, self.target) for kernel in serving}

        def answer(kernel: str, config: Config) -> Answer:
            return expected(known[kernel], config, trials.get((kernel, identity(config))))

        winner = answer(result.record.kernel, result.record.config)
        return Prediction(
            workload=str(workload),
            device=self.target.device.name,
            winner=replace(winner, why=(result.record.certificate or {}).get("decision", "")),
            defaults=[answer(name, case.default()) for name, case in known.items()],
            runtime=replace(answer(choice.kernel, choice.config), why=choice.why),
            made=self._made(result.record, budget),
        )

    def _made(self, record: Record, budget: Budget) -> dict[str, Any]:
        names = ("tunefa", "model", "learned", "triton", "compiler", "date", "trials")
        versions = {name: record.provenance[name] for name in names if name in record.provenance}
        budgets = {"budget_s": budget.seconds, "budget_trials": budget.trials}
        given = {name: value for name, value in budgets.items() if value is not None}
        return {"without": self.without, **given, **versions}


def expected(case: Case, config: Config, trial: Trial | None) -> Answer:
    """The answer with its expected time: that of its trial, if it was compiled."""
    if trial is not None and trial.predicted_us and trial.predicted_sd is not None:
        time_us, sd = trial.predicted_us, trial.predicted_sd
    else:
        before = estimate(case, config)
        time_us, sd = before.time_us, before.sd
    interval = Interval.around(time_us, sd) or Interval(time_us, time_us)
    return Answer(case.kernel.name, dict(config), time_us, interval.low_us, interval.high_us)
