"""The cost model's times for one family of workloads, which differ in batch and lengths only.

They are those of `tunefa.costmodel.estimate`, from the same functions. What is computed once for a
config is what its kernel's model has learned, as far as the config and the family decide it (see
`tunefa.costmodel.tree_masks`); what is computed once for a record is the model's time for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from tunefa.costmodel import learned
from tunefa.costmodel.anchor import Modelled
from tunefa.costmodel.estimate import Estimate, errors, estimate
from tunefa.costmodel.features import of_config, parameters
from tunefa.costmodel.learned import LearnedModel
from tunefa.costmodel.tree_masks import TreeMasks
from tunefa.spec.arch import GpuArch
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources, identity
from tunefa.store.record import Record

MAX_CONFIGS = 64
"""Configs of a family that are prepared, with about 0.3 MB each. Others take longer each time."""
_PROBES = ((1, 1, 1), (3, 65, 1000), (64, 5000, 300), (7, 1000, 40000), (500, 16, 130))
"""Batches and lengths of queries and keys that show which features depend on them."""


class FamilyTimes:
    """The times of one family's configs on one target, see `tunefa.costmodel.anchor.Times`."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        """`kernels` know all workloads: records may be of other families."""
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self._models: dict[str, LearnedModel | None] = {}
        self._configs: dict[tuple[object, ...], Prepared] = {}
        self._of_record: dict[int, tuple[Record, float | None]] = {}
        self._trust: dict[str, tuple[object, float]] = {}

    def estimate(self, case: Case, config: Config, resources: Resources | None = None) -> Estimate:
        """Returns what `estimate` does."""
        kernel = case.kernel
        if kernel.is_library or kernel.op != "fwd" or not isinstance(case.arch, GpuArch):
            return estimate(case, config, resources)
        key = kernel.name, resources and id(resources), identity(config)
        found = self._configs.get(key)
        if found is None:
            if len(self._configs) >= MAX_CONFIGS:
                return estimate(case, config, resources)
            found = self._configs[key] = Prepared.of(self._model(case), case, config, resources)
        return found.estimate(case, self._trusted(found.model, case))

    def of_record(self, case: Case, record: Record) -> float | None:
        """Returns what `Modelled.of_record` does."""
        found = self._of_record.get(id(record))
        if found is None:
            whole = replace(case, kernel=self._kernels.get(record.kernel, case.kernel))
            found = self._of_record[id(record)] = record, Modelled().of_record(whole, record)
        return found[1]

    def _model(self, case: Case) -> LearnedModel | None:
        name = case.kernel.name
        if name not in self._models:
            self._models[name] = learned.load(name, case.arch.name)
        return self._models[name]

    def _trusted(self, model: LearnedModel | None, case: Case) -> float:
        """Returns the trust in a model for a workload, which is asked for each of its configs."""
        if model is None:
            return 0.0
        workload, trust = self._trust.get(model.kernel, (None, 0.0))
        if workload is not case.workload:
            trust = model.trust(case)
            self._trust[model.kernel] = case.workload, trust
        return trust


@dataclass(frozen=True)
class Prepared:
    """One config of a family, and what was learned about it."""

    config: Config
    resources: Resources | None
    model: LearnedModel | None
    """None where nothing was learned."""
    fixed: tuple[float, ...] = ()
    """The values of the features that depend on no length."""
    fixed_of: Any = None
    """Takes these from the values of all features, and `free_of` takes the others."""
    free_of: Any = None
    masks: TreeMasks | None = None

    @classmethod
    def of(
        cls, model: LearnedModel | None, case: Case, config: Config, resources: Resources | None
    ) -> Prepared:
        """Returns a config, prepared for the family of a case."""
        rows = [of_config(each, config, resources)[1] for each in _probes(case)]
        own = parameters(case.kernel.space, [config])[0].tolist()
        space = case.kernel.space
        titles = (*(parameter.name for parameter in space.parameters), *rows[0])
        columns = None if model is None else model.columns(titles)
        if model is None or columns is None:
            return cls(config, resources, None)
        own = [own[place] for place in columns if place < len(own)]
        values = [tuple(row.values()) for row in rows]
        is_fixed = [len(set(column)) == 1 for column in zip(*values, strict=True)]
        fixed = [place for place, same in enumerate(is_fixed) if same]
        free = [place for place, same in enumerate(is_fixed) if not same]
        known = {len(own) + place: float(np.float32(values[0][place])) for place in fixed}
        known |= dict(enumerate(own))
        masks = TreeMasks(model.trees, known, [len(own) + place for place in free])
        take, take_free = itemgetter(*fixed), itemgetter(*free)
        return cls(config, resources, model, take(values[0]), take, take_free, masks)

    def estimate(self, case: Case, trust: float) -> Estimate:
        """Returns the estimate for a case of the family."""
        us, named = of_config(case, self.config, self.resources)
        if self.model is None or self.masks is None:
            return Estimate(us, *errors(None, 0.0))
        values = tuple(named.values())
        if self.fixed_of(values) != self.fixed:
            return estimate(case, self.config, self.resources)
        row = np.array(self.free_of(values), np.float32).tolist()
        correction = self.model.bias + self.masks.total(row)
        return Estimate(us * math.exp(trust * correction), *errors(self.model, trust))


def _probes(case: Case) -> list[Case]:
    """Returns the case, and cases of its family with very different lengths."""
    made = [case]
    for batch, rows, keys in _PROBES:
        workload = replace(case.workload, batch=batch, seqlen_q=rows, seqlen_k=keys)
        if workload.band == case.workload.band:  # a window may hide no key of short sequences
            made.append(replace(case, workload=workload))
    return made
