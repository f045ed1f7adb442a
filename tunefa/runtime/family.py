"""A family of workloads, which differ in batch and lengths only, and the choice for each of them.

A server asks for another length at each token. What does not depend on it is prepared at a family's
first call: its records, the kernels' rules (see `tunefa.spec.family_space`) and what the cost model
knows of the configs (see `tunefa.costmodel.family_times`). The choice itself is that of
`tunefa.runtime.choose`, from the same functions.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tunefa.costmodel.family_times import FamilyTimes
from tunefa.errors import TunefaError
from tunefa.runtime.cells import Cells, Lengths, Workloads, lengths_of
from tunefa.runtime.choose import Chooser
from tunefa.spec.family_space import FamilySpace
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Space
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import distances, lookup
from tunefa.store.lookup import Choice
from tunefa.store.record import Record
from tunefa.store.results import Store, current, question

_SPREAD = ((1, 32), (1, 100, 1000, 8000), (100, 1000, 8000, 30000))
"""Batches and lengths of queries and keys."""

MAX_RULES = 1024
"""The most choices that are kept with what rules say of them."""


class FamilyStore(Store):
    """The records of one family, read once."""

    def __init__(self, whole: Store, workload: Workload, target: Target) -> None:
        super().__init__(())
        self._records = lookup.by_trust(whole.records(), workload, target)
        self._whole = whole
        self._remarks: dict[int, str] = {}
        measured = all(record.device is not None for record in self._records)
        questions = set(map(question, self._records))
        self._all_current = measured and len(questions) == len(self._records)
        self._ranks = {id(record): record.rank for record in self._records}

    def records(self) -> list[Record]:
        """Returns the family's records."""
        return self._records

    def current(self, records: Sequence[Record]) -> list[Record]:
        """Returns those of these records that no other one supersedes."""
        return list(records) if self._all_current else current(records)

    def remark(self, record: Record) -> str:
        """Returns the remark of the whole store."""
        if id(record) not in self._remarks:
            self._remarks[id(record)] = self._whole.remark(record)
        return self._remarks[id(record)]

    def ranked(self, workload: Workload, target: Target) -> list[Record]:
        """Returns the records as `lookup.by_trust` sorts them."""
        if len(self._records) < 2:
            return self._records
        keyed = [
            (
                record.device is None,
                round(distances.apart(record, workload, target), 6),
                record.workload != workload,
                self._ranks[id(record)],
                number,
            )
            for number, record in enumerate(self._records)
        ]
        return [self._records[key[-1]] for key in sorted(keyed)]


class Family(Chooser):
    """Chooses for the workloads of one family on one target."""

    def __init__(
        self, store: Store, workload: Workload, target: Target, kernels: Sequence[Kernel]
    ) -> None:
        self._own = own = FamilyStore(store, workload, target)
        self._of_any_heads = kernels
        bound = [_of_family(kernel, workload, target) for kernel in kernels]
        super().__init__(own, target, bound, FamilyTimes(kernels))
        self.workload = Workloads(workload)
        self._cells = Cells(self._anew)
        self._measured = {lengths_of(record.workload) for record in own.records()}
        self._rules: dict[int, tuple[Choice, Callable[[dict[str, Any]], bool] | None]] = {}
        """By the identity of a choice: the choice, and what rules say of lengths."""

    @property
    def of_any_heads(self) -> Sequence[Kernel]:
        """The kernels as they are, without the family's heads in their rules and defaults."""
        return self._of_any_heads

    def prepare(self) -> None:
        """Makes choices for very different lengths, so that what these need is prepared."""
        for asked in itertools.starmap(Lengths, itertools.product(*_SPREAD)):
            with contextlib.suppress(TunefaError):  # no kernel serves it
                self.choose(self.workload(asked))

    def quick(self, workload: Workload) -> Choice:
        """Returns what `choose` does, from what is remembered of lengths nearby where that is sure.

        Raises TunefaError when no kernel serves the workload.
        """
        found = self.general(workload)
        return self.choose(workload) if found is None else self.explained(found, workload)

    def general(self, workload: Workload) -> Choice | None:
        """Returns the choice that is remembered of lengths nearby, or made and remembered, before
        the kernel sets parameters for the workload. It is None where the workload has a choice of
        its own: it was measured, or a rule refuses what is remembered.

        Raises TunefaError when no kernel serves the workload.
        """
        asked = lengths_of(workload)
        if asked in self._measured:
            return None
        found = self._cells.find(asked) or self._cells.choose(asked)
        return found if self._runs(found, workload) else None

    def remembered(self, asked: Lengths) -> Choice | None:
        """Returns what `general` does where that is remembered; None where it is not."""
        found = self._cells.find(asked)
        if found is None or asked in self._measured:
            return None
        known = self._rules.get(id(found))
        runs = self._whether(found) if known is None else known[1]
        if runs is None:
            return found
        batch, rows, keys = asked
        return found if runs({"batch": batch, "seqlen_q": rows, "seqlen_k": keys}) else None

    def sure_around(self, asked: Lengths) -> tuple[Lengths, Lengths] | None:
        """Returns lengths between which all get the choice that `remembered` returns for those that
        are asked for; None where some may not."""
        found = self._cells.find(asked)
        if found is None:
            return None
        low, high = self._cells.around(asked)
        if any(
            low[1] <= each[1] <= high[1] and low[2] <= each[2] <= high[2] for each in self._measured
        ):
            return None
        space, spans = (
            self.kernel(found.kernel).space,
            (range(low[at], high[at] + 1) for at in (1, 2)),
        )
        if not isinstance(space, FamilySpace) or not space.runs_throughout(
            found.config, asked[0], *spans
        ):
            return None
        return low, high

    def explained(self, choice: Choice, workload: Workload) -> Choice:
        """Returns what `general` returned, with the parameters for the workload and the reason."""
        return self.specialized(choice.seen_from(workload, self.target), workload)

    def _runs(self, choice: Choice, workload: Workload) -> bool:
        kernel, arch = self.kernel(choice.kernel), self.target.arch
        if kernel.why_not(workload, arch):
            return False
        return not kernel.refusal(choice.config, workload, arch)

    def _whether(self, choice: Choice) -> Callable[[dict[str, Any]], bool] | None:
        """Whether a choice runs, as a function of lengths; None where no rule depends on them."""
        if id(choice) not in self._rules:
            kernel = self.kernel(choice.kernel)
            if len(self._rules) >= MAX_RULES:
                self._rules.clear()
            if isinstance(kernel.space, FamilySpace):
                runs = kernel.space.runs(choice.config)
            else:  # a test's
                runs = lambda asked: self._runs(choice, self.workload(Lengths(**asked)))  # noqa: E731
            self._rules[id(choice)] = choice, runs
        return self._rules[id(choice)][1]

    def kernel(self, name: str) -> Kernel:
        """The kernel with this name."""
        return next(each for each in self.kernels if each.name == name)

    def whole_kernel(self, name: str) -> Kernel:
        """The kernel with this name, without what the family's choices prepared."""
        return next(each for each in self.of_any_heads if each.name == name)

    def _anew(self, asked: Lengths) -> Choice:
        return self.unspecialized(self.workload(asked))

    def ranked(self, workload: Workload) -> list[Record]:
        """Returns the family's records, as `lookup.by_trust` sorts them."""
        return self._own.ranked(workload, self.target)


def _of_family(kernel: Kernel, workload: Workload, target: Target) -> Kernel:
    if not isinstance(kernel.space, Space):  # a test's
        return kernel
    return replace(kernel, space=FamilySpace.of(kernel.space, workload, target.arch))
