"""Chooses the config for a workload that was not measured, from the records of workloads near it.

The best config for the nearest workload need not be the best here: one more tile may start another
wave of CTAs, and a small problem needs tiles that fill the device. The cost model knows this, but
not how well a kernel is written; a record knows that. So each candidate config gets the cost
model's time, corrected by a factor: the measured time of the kernel's nearest record, divided by
the cost model's time for that record on the device that it was measured on. At last the kernel may
change parameters for the number of tiles and SMs (`specialize`, see
tunefa/compile/languages/cuda.py).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tunefa.costmodel.estimate import expected_us
from tunefa.errors import TunefaError
from tunefa.spec.arch import Arch, Device
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store.lookup import Choice
from tunefa.store.record import Record
from tunefa.store.results import Store, current

GAIN = 0.05
"""The expected gain that another config needs to replace the nearest record's. Where another config
is better, because of waves or small problems, it gains 10 to 40 %; the cost model errs by some
percent."""


def choose(
    store: Store,
    workload: Workload,
    target: Target,
    kernels: Sequence[Kernel],
) -> Choice:
    """Chooses the kernel and config for a workload on a target.

    A config that was measured for this workload is taken as it is, also if it was in the other of
    bf16 and fp16, or on another device with as many SMs. Otherwise it is the config that
    is expected to be fastest, among those of the records within `FAR_OCTAVES` (an octave is a
    factor of two in a length or a number of heads) and the defaults of the kernels that were
    measured, and it is specialized for the workload. The device need not be present.

    Raises TunefaError when no kernel serves the workload.
    """
    found = lookup.lookup(store, workload, target, kernels)
    if found.how in ("exact", "predicted") or not target.is_known_product:
        return found
    if found.record is not None and _as_if_exact(found.record, workload, target):
        return found
    if found.record is not None:
        found = _fastest(found, found.record, _Near(store, workload, target, kernels))
    kernel = next(each for each in kernels if each.name == found.kernel)
    return _specialized(found, Case(kernel, workload, target))


def _as_if_exact(record: Record, workload: Workload, target: Target) -> bool:
    """Whether a record's config was compared with others on as many SMs for this very workload."""
    same = replace(record.workload, dtype=workload.dtype) == workload
    device = _device(record, target.arch)
    return same and device is not None and device.sms == target.device.sms


def _device(record: Record, arch: Arch) -> Device | None:
    """The device that a record was measured on; None if the arch's file does not have it."""
    with contextlib.suppress(TunefaError):
        return arch.device(record.device)
    return None


def _fastest(nearest: Choice, record: Record, near: _Near) -> Choice:
    """The nearest record's choice, or a config that is expected to be faster by `GAIN`."""
    expected = list(near.expected())
    own = nearest.kernel, dict(nearest.config)
    # It is missing, so 0, where a newer record of that workload has a config that cannot run here.
    own_us = next((us for name, config, us, _ in expected if (name, dict(config)) == own), 0.0)
    if not expected:
        return nearest
    name, config, us, source = min(expected, key=lambda each: each[2])
    if not us <= (1 - GAIN) * own_us < math.inf:
        return nearest
    made = Choice(name, dict(config), nearest.how, record, nearest.octaves, 1 - us / own_us)
    is_own = source is not None and source.device == near.target.device.name
    return replace(made, remark=near.store.remark(source) if source and is_own else "")


def _specialized(choice: Choice, case: Case) -> Choice:
    """The choice with the parameters that its kernel's `specialize`, if any, sets for the case."""
    specialize = getattr(case.kernel.module, "specialize", None)
    sms = case.device.sms
    changes = specialize(case.workload, choice.config, sms) if specialize else {}
    config = {**choice.config, **changes}
    if not changes or case.refusal(config) is not None:
        return choice
    return replace(choice, config=config, specialized=changes)


@dataclass(frozen=True)
class _Near:
    """The records near a workload."""

    store: Store
    workload: Workload
    target: Target
    kernels: Sequence[Kernel]

    def expected(self) -> Iterator[tuple[str, Config, float, Record | None]]:
        """Yields (kernel, config, expected time in us, record) of every config that can run; a
        default has no record."""
        cases = (Case(kernel, self.workload, self.target) for kernel in self.kernels)
        serving = {case.kernel.name: case for case in cases if case.why_not() is None}
        scales: dict[str, float] = {}
        for record in self._measured():
            case = serving.get(record.kernel)
            if case is None:
                continue
            if record.kernel not in scales:
                scales[record.kernel] = _scale(case, record)
                with contextlib.suppress(
                    TunefaError
                ):  # the kernel has no default for this workload
                    default = case.default()
                    us = scales[record.kernel] * expected_us(case, default)
                    yield record.kernel, default, us, None
            far = lookup.distance(record.workload, self.workload) > lookup.FAR_OCTAVES
            if not far and case.refusal(record.config) is None:
                us = scales[record.kernel] * expected_us(case, record.config)
                yield record.kernel, dict(record.config), us, record

    def _measured(self) -> list[Record]:
        """The measured records for workloads of the same family, the nearest first."""
        ranked = lookup.by_trust(self.store.records(), self.workload, self.target)
        return current([record for record in ranked if record.device is not None])


def _scale(case: Case, record: Record) -> float:
    """A record's time divided by the cost model's time for it on its own device.

    It is infinite if the model gives none, or does not know the device.
    """
    if record.device != case.device.name:
        device = _device(record, case.arch)
        if device is None:
            return math.inf
        case = replace(case, target=Target(case.arch, device))
    us = expected_us(replace(case, workload=record.workload), record.config)
    return record.median_us / us if 0.0 < us < math.inf else math.inf
