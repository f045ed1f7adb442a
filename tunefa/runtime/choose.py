"""The config for a workload that nobody measured, from those measured near it.

What is best for the nearest workload need not be: one tile more may begin another wave of CTAs, and
a small problem wants tiles that fill the device. The cost model knows such things, and not how well
a kernel does; a record knows that. So every config at hand is given the model's time, times what
the kernel's nearest record took over what the model says of that one. In the end the kernel may say
what should be otherwise for so many tiles on so many SMs (`specialize`, see
tunefa/compile/languages/cuda.py).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tunefa.costmodel.expected_time import expected_us
from tunefa.errors import TunefaError
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store.lookup import Choice
from tunefa.store.record import Record
from tunefa.store.results import Store, current

GAIN = 0.05
"""By how much another config must be expected to be faster than the nearest record's: where it
matters, in waves and on small problems, it is 10 to 40 %, and the model errs by some percent."""


def choose(
    store: Store,
    workload: Workload,
    target: Target,
    kernels: Sequence[Kernel],
    *,
    here: bool = True,
) -> Choice:
    """What `lookup` finds; where that is the nearest record's, the config expected to be fastest.

    One of the records up to `FAR_OCTAVES` away, or the default of a kernel that was measured. What
    was not measured for this very workload is specialized for it. `here`: as in `lookup`.

    Raises `TunefaError` when no kernel serves the workload.
    """
    found = lookup.lookup(store, workload, target, kernels, here=here)
    if found.how not in ("nearest", "default") or not here or not target.is_known_product:
        return found
    if found.record is not None:
        found = _fastest(found, found.record, _Near(store, workload, target, kernels))
    kernel = next(each for each in kernels if each.name == found.kernel)
    return _specialized(found, Case(kernel, workload, target))


def _fastest(nearest: Choice, record: Record, near: _Near) -> Choice:
    """The choice of a record, or the config that is expected to be faster by some percent."""
    expected = list(near.expected())
    own = nearest.kernel, dict(nearest.config)
    # 0 where a newer record of the nearest's question has a config that cannot run here.
    own_us = next((us for name, config, us in expected if (name, dict(config)) == own), 0.0)
    name, config, us = min(expected, key=lambda each: each[2], default=("", {}, math.inf))
    if not us <= (1 - GAIN) * own_us < math.inf:
        return nearest
    return Choice(name, dict(config), "nearest", record, nearest.octaves, 1 - us / own_us)


def _specialized(choice: Choice, case: Case) -> Choice:
    """The choice with what its kernel's host side, if it has a `specialize`, sets for the case."""
    specialize = getattr(case.kernel.module, "specialize", None)
    sms = case.device.sms
    changes = specialize(case.workload, choice.config, sms) if specialize else {}
    config = {**choice.config, **changes}
    if not changes or case.refusal(config) is not None:
        return choice
    return replace(choice, config=config, specialized=changes)


@dataclass(frozen=True)
class _Near:
    """What is known near a workload."""

    store: Store
    workload: Workload
    target: Target
    kernels: Sequence[Kernel]

    def expected(self) -> Iterator[tuple[str, Config, float]]:
        """(kernel, config, expected time) of all that may run."""
        cases = (Case(kernel, self.workload, self.target) for kernel in self.kernels)
        serving = {case.kernel.name: case for case in cases if case.why_not() is None}
        scales: dict[str, float] = {}
        for record in self._measured():
            case = serving.get(record.kernel)
            if case is None:
                continue
            if record.kernel not in scales:
                scales[record.kernel] = _scale(case, record)
                with contextlib.suppress(TunefaError):  # it has no default for this
                    default = case.default()
                    us = scales[record.kernel] * expected_us(case, default)
                    yield record.kernel, default, us
            far = lookup.distance(record.workload, self.workload) > lookup.FAR_OCTAVES
            if not far and case.refusal(record.config) is None:
                us = scales[record.kernel] * expected_us(case, record.config)
                yield record.kernel, dict(record.config), us

    def _measured(self) -> list[Record]:
        """Records of this device and the workload's family, the nearest first."""
        arch, name = self.target.arch.name, self.target.device.name
        ranked = lookup.by_trust(self.store.records(), self.workload, arch, name)
        return current([record for record in ranked if record.device == name])


def _scale(case: Case, record: Record) -> float:
    """What a record took over what the model says of it; infinite where that is nothing."""
    us = expected_us(replace(case, workload=record.workload), record.config)
    return record.median_us / us if 0.0 < us < math.inf else math.inf
