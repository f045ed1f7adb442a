"""Chooses the config for a workload that was not measured, from the records of workloads near it.

The best config for the nearest workload need not be the best here: one more tile may start another
wave of CTAs, and a small problem needs tiles that fill the device. The cost model knows this, but
not how well a kernel is written; a record knows that. So what is known to be good, records and
measured defaults, is compared by the cost model's times, corrected by the records (see
tunefa/costmodel/anchor.py). At last the kernel may change parameters for the number of tiles and
SMs (see tunefa/costmodel/specialize.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tunefa.costmodel.anchor import Anchor, Modelled, Times, as_if_exact
from tunefa.costmodel.decision import Expected, decide
from tunefa.costmodel.specialize import specialized
from tunefa.costmodel.version import model_version
from tunefa.errors import TunefaError
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import identity
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store.lookup import Choice
from tunefa.store.record import Record
from tunefa.store.results import Store, current


def choose(
    store: Store,
    workload: Workload,
    target: Target,
    kernels: Sequence[Kernel],
) -> Choice:
    """Returns the choice for a workload on a target, see `Chooser.choose`."""
    return Chooser(store, target, kernels).choose(workload)


@dataclass(eq=False)
class Chooser:
    """The records, target and kernels that configs are chosen from."""

    store: Store
    target: Target
    kernels: Sequence[Kernel]
    times: Times = field(default_factory=Modelled)
    _repeats: dict[int, bool] = field(default_factory=dict, init=False)
    """By the identity of a record, whether it has what would run there without it."""

    @property
    def of_any_heads(self) -> Sequence[Kernel]:
        """The kernels, which serve workloads with any heads: those of records may have others."""
        return self.kernels

    def ranked(self, workload: Workload) -> list[Record]:
        """Returns the records of the workload's family, as `lookup.by_trust` does."""
        return lookup.by_trust(self.store.records(), workload, self.target)

    def choose(self, workload: Workload) -> Choice:
        """Chooses the kernel and config for a workload on a target.

        A config that was measured for this workload is taken as it is, also if it was in the other
        of bf16 and fp16, or on another device with as many SMs. Otherwise it is the best known
        config: the nearest record's, unless that of another record within `FAR_OCTAVES` (an octave
        is a factor of two in a length or a number of heads) or a measured default is faster beyond
        the error of the comparison. It gives way to what a search predicted for this workload only
        by the same rule. A record with the default of its kernel is no reason to run this kernel
        where the measured default is another one's. The choice is specialized for the workload. The
        device need not be present.

        Raises TunefaError when no kernel serves the workload.
        """
        return self.specialized(self.unspecialized(workload), workload)

    def specialized(self, choice: Choice, workload: Workload) -> Choice:
        """Returns a choice with the parameters that its kernel sets for the workload, unless it is
        final."""
        if choice.is_final:
            return choice
        kernel = next(each for each in self.kernels if each.name == choice.kernel)
        return _specialized(choice, Case(kernel, workload, self.target))

    def unspecialized(self, workload: Workload) -> Choice:
        """Returns the choice before its kernel sets parameters for the workload."""
        store, target, kernels = self.store, self.target, self.kernels
        ranked = self._telling(workload)
        found = lookup.lookup(store, workload, target, kernels, ranked)
        if found.how == "exact" or not target.is_known_product:
            return replace(found, is_final=True)
        kernel = next(each for each in kernels if each.name == found.kernel)
        if kernel.is_library:
            return replace(found, is_final=True)  # no model says what it takes
        if found.record is not None and as_if_exact(found.record, workload, target):
            return replace(found, is_final=True)
        measured = store.current([record for record in ranked if record.device is not None])
        anchor = Anchor(workload, target, kernels, measured, self.times)
        if anchor.best_known is None:
            if found.how == "predicted":
                return replace(found, is_final=True)
        else:
            if found.how == "predicted":
                found = lookup.lookup(store, workload, target, kernels, anchor.records)
            predictions = list(_predictions(ranked, anchor))
            best = decide(anchor.best_known.winner, predictions).winner
            found = _as_predicted(_better(found, best, store, anchor), predictions)
        return found

    def _telling(self, workload: Workload) -> list[Record]:
        """Returns the records without those that tell nothing of the workload.

        Which kernel's default runs may depend on the lengths. Where the default of one kernel was
        measured, records of another one that have its default, and would have it without a record,
        only say that this other kernel is the right one there.
        """
        ranked = self.ranked(workload)
        first = self._first(workload, self.kernels) if ranked else None
        if first is None or all(record.kernel == first.name for record in ranked):
            return ranked
        with contextlib.suppress(TunefaError):  # it has no default here
            if first.first_default(workload, self.target.arch).is_known_on(self.target.arch):
                return [
                    record
                    for record in ranked
                    if record.kernel == first.name
                    or record.workload == workload
                    or not self._repeats_default(record)
                ]
        return ranked

    def _first(self, workload: Workload, kernels: Sequence[Kernel]) -> Kernel | None:
        """The kernel that runs without records; None if it is a library, or none serves."""
        arch = self.target.arch
        serving = [each for each in kernels if each.why_not(workload, arch) is None]
        first = min(serving, key=lambda each: each.priority(workload, arch), default=None)
        return None if first is None or first.is_library else first

    def _repeats_default(self, record: Record) -> bool:
        """Whether a measured record has what would run for its workload without records."""
        if id(record) not in self._repeats:
            self._repeats[id(record)] = record.device is not None and self._is_default(record)
        return self._repeats[id(record)]

    def _is_default(self, record: Record) -> bool:
        first = self._first(record.workload, self.of_any_heads)
        if first is None or first.name != record.kernel:
            return False
        try:
            default = first.default(record.workload, self.target.arch)
        except TunefaError:
            return False
        return identity(default) == identity(record.config)


def _predictions(records: Sequence[Record], anchor: Anchor) -> Iterator[Expected]:
    """Yields what searches predicted for this very workload, from what is known to be good, by the
    model of today."""
    own = [r for r in records if r.is_anchored and r.workload == anchor.workload]
    if not own:
        return
    version = model_version("predicted", anchor.workload.op)
    for record in current([record for record in own if record.model_version == version]):
        case = anchor.cases.get(record.kernel)
        if case is not None and case.refusal(record.config) is None:
            expected = anchor.expected(record.kernel, record.config, record.resources)
            yield replace(expected, record=expected.record or record)


def _better(found: Choice, best: Expected, store: Store, anchor: Anchor) -> Choice:
    """The choice of the lookup, or the config that is expected to be better, if that is another."""
    if (best.kernel, dict(best.config)) == (found.kernel, found.config):
        return found
    gain = 1 - best.time_us / anchor.expected(found.kernel, found.config).time_us
    record = best.record
    if record is not None and record.device is None:
        return Choice(best.kernel, dict(best.config), "predicted", record)
    remark = ""
    if record is not None and record.device == anchor.target.device.name:
        remark = store.remark(record)
    config = dict(best.config)
    return replace(found, kernel=best.kernel, config=config, gain=gain, remark=remark)


def _as_predicted(found: Choice, predictions: Sequence[Expected]) -> Choice:
    """The choice of a default as that of the prediction that found the same config, if any."""
    own = (each.record for each in predictions if each.kernel == found.kernel)
    same = next((record for record in own if record and record.config == found.config), None)
    if found.record is not None or same is None:
        return found
    return replace(found, how="predicted", record=same)


def _specialized(choice: Choice, case: Case) -> Choice:
    """The choice with the parameters that its kernel sets for the case."""
    changes = specialized(case, choice.config)
    if not changes:
        return choice
    return replace(choice, config={**choice.config, **changes}, specialized=changes)
