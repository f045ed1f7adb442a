"""Anchors predictions: what is known to be good, what it takes here, and when to leave it.

Some configs are known to be good: those of records that were measured for workloads nearby, on this
device or on another one of its arch, and the defaults that a space marks as measured on a device of
the arch. The cost model says what they take on a workload, corrected by the kernel's level: the
measured time of its nearest record, divided by the model's time for that record with the resources
that the compiler reported for it. The model does not know how well a kernel is written; the record
does. A config that was measured for this workload on this device takes the measured time.

A search without a device and the runtime take what they know from here, and decide alike whether
another config replaces it (see `tunefa.costmodel.decision`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from tunefa.costmodel.decision import KNOWN_SURE, SURE, Decision, Expected, decide
from tunefa.costmodel.estimate import Estimate, estimate
from tunefa.costmodel.specialize import specialized
from tunefa.errors import TunefaError
from tunefa.spec.arch import Arch, Device
from tunefa.spec.default import Default
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Resources, identity
from tunefa.spec.workload import Workload
from tunefa.store.distances import FAR_OCTAVES, apart, distance
from tunefa.store.record import Record
from tunefa.store.results import current

KNOWN_SD = 0.025
"""The standard deviation of log(measured / expected) of one known config around its kernel's level.
Known configs are alike in what the model misses: 8 pairs of one kernel on one workload of an H200
differed from their predicted ratios by 3.6 % (root mean square), the square root of two times
this."""
OCTAVE_SD = 0.02
"""The standard deviation that each octave between the nearest record and the workload adds to the
level: on an H200 the levels of two records of one kernel differ by 4.4 % at 1 to 2 octaves (15
pairs), 6.4 % at 2 to 3 (18), 5.5 % at 3 to 4 (28), 9.8 % at 4 to 6 (23), the records' own
deviations included."""
REPEAT_SD = 0.01
"""The standard deviation of the level where the record was measured for this very workload on this
device: another day, another card."""


@dataclass(frozen=True)
class Level:
    """The ratio of measured to modelled time of one kernel on one workload."""

    factor: float
    sd: float
    """The standard deviation of its logarithm."""


class Times(Protocol):
    """The times that the cost model says."""

    def estimate(self, case: Case, config: Config, resources: Resources | None = None) -> Estimate:
        """Returns the time of a config by the compiler's resources, None before compiling."""

    def of_record(self, case: Case, record: Record) -> float | None:
        """Returns the model's time in us for what a record of the case's kernel measured; None if
        the model gives no time or does not know the device."""


class Modelled:
    """The cost model's times, computed whenever they are asked for."""

    def estimate(self, case: Case, config: Config, resources: Resources | None = None) -> Estimate:
        """See `Times`."""
        return estimate(case, config, resources)

    def of_record(self, case: Case, record: Record) -> float | None:
        """See `Times`."""
        there = _on_its_device(case, record)
        if there is None:
            return None
        us = _as_compiled(self, there, record.config, record).time_us
        return us if 0.0 < us < math.inf else None


@dataclass(frozen=True)
class Anchor:
    """The facts known of one workload on one target: records nearby, and measured defaults."""

    workload: Workload
    target: Target
    kernels: Sequence[Kernel]
    records: Sequence[Record]
    """The measured records for workloads of the same family, the nearest first."""
    times: Times = field(default_factory=Modelled, compare=False)

    @classmethod
    def of(
        cls,
        ranked: Sequence[Record],
        workload: Workload,
        target: Target,
        kernels: Sequence[Kernel],
    ) -> Anchor:
        """Returns what records and the defaults of these kernels say. `lookup.by_trust` has ranked
        the records."""
        measured = current([record for record in ranked if record.device is not None])
        return cls(workload, target, kernels, measured)

    @cached_property
    def cases(self) -> dict[str, Case]:
        """The cases of the kernels that serve the workload, by name, without libraries."""
        ours = (kernel for kernel in self.kernels if not kernel.is_library)
        cases = (Case(kernel, self.workload, self.target) for kernel in ours)
        return {case.kernel.name: case for case in cases if case.why_not() is None}

    @cached_property
    def levels(self) -> dict[str, Level]:
        """The level of each kernel. A kernel without a record has that of the nearest record of
        another one, as what the model misses of a workload is alike in all, but is less sure."""
        nearest = {record.kernel: record for record in reversed(self.records)}
        own = {name: self._level(case, nearest.get(name)) for name, case in self.cases.items()}
        first = next((level for r in self.records if (level := own.get(r.kernel))), Level(1.0, 0.0))
        return {name: level or Level(first.factor, math.inf) for name, level in own.items()}

    def _level(self, case: Case, record: Record | None) -> Level | None:
        """The level by a record of the kernel: its time divided by the model's on its own device.

        It is None without a record, and if the model gives no time or does not know the device.
        """
        us = None if record is None else self.times.of_record(case, record)
        if record is None or us is None:
            return None
        octaves = apart(record, self.workload, self.target)
        return Level(record.median_us / us, math.hypot(REPEAT_SD, OCTAVE_SD * octaves))

    @cached_property
    def known(self) -> tuple[Expected, ...]:
        """The configs that are known to be good, each once, the most trusted first: those of the
        records that are near enough, then measured defaults in the order of priority."""
        found: dict[object, Expected] = {}
        for record in self.records:
            case = self.cases.get(record.kernel)
            if case is None or distance(record.workload, self.workload) > FAR_OCTAVES:
                continue
            key = record.kernel, identity(record.config)
            if key not in found and case.refusal(record.config) is None:
                which = "this workload" if record.workload == self.workload else record.workload
                source = f"the config measured for {which} on {record.device}"
                found[key] = self._known(record.kernel, record.config, source, record)
        for name, default in self._defaults.items():
            key = name, identity(default.config)
            if key not in found and default.is_known_on(self.target.arch):
                source = f"the default measured on {default.measured}"
                found[key] = self._known(name, default.config, source)
        return tuple(found.values())

    @cached_property
    def _defaults(self) -> dict[str, Default]:
        """The default of each kernel that has one, in the order of the kernels' priority."""
        found = {}
        for case in sorted(self.cases.values(), key=lambda case: case.priority):
            with contextlib.suppress(TunefaError):  # the kernel has no default for this workload
                default = case.kernel.first_default(case.workload, case.arch)
                found[case.kernel.name] = default
        return found

    @cached_property
    def best_known(self) -> Decision | None:
        """The best known config: the most trusted one, or a known one that is expected to be faster
        beyond the error. None if nothing is known.

        Where no record applies, the default of the kernel with the lowest `priority` number is the
        most trusted. A config that was compared with others for this workload on as many SMs stays.
        """
        if not self.known:
            return None
        first = self.known[0]
        if first.record is not None and as_if_exact(first.record, self.workload, self.target):
            return decide(first, ())
        preferred = next(iter(self._defaults), first.kernel)
        if first.record is None and first.kernel != preferred:
            first = self._known_or_at_level(preferred, self._defaults[preferred].config)
        return decide(first, self.known)

    def _known_or_at_level(self, kernel: str, config: Config) -> Expected:
        """Returns what a config takes before compiling, without asking for the best known one."""
        made = self._at_level(kernel, config, self.times.estimate(self.cases[kernel], config))
        return next((each for each in self.known if each.key == made.key), made)

    @cached_property
    def recommended(self) -> Expected | None:
        """The best known config as it runs here, with the parameters that its kernel sets for the
        number of tiles and SMs; None if nothing is known."""
        if self.best_known is None:
            return None
        best = self.best_known.winner
        if best.record is not None and as_if_exact(best.record, self.workload, self.target):
            return best
        case = self.cases[best.kernel]
        if not (changes := specialized(case, best.config)):
            return best
        config = {**best.config, **changes}
        time = _as_compiled(self.times, case, config, best.record)
        made = self._at_level(best.kernel, config, time)
        return replace(best, config=config, time_us=made.time_us)

    def expected(self, kernel: str, config: Config, resources: Resources | None = None) -> Expected:
        """Returns what a config of one of the kernels is expected to take.

        `resources` are the compiler's, None before compiling: those of a record's config are known.
        """
        known = self.known_by_key.get((kernel, identity(config)))
        if known and (resources is None or self._is_exact(known.record)):
            return known
        time = self.times.estimate(self.cases[kernel], config, resources)
        made = self._at_level(kernel, config, time)
        return made if known is None else replace(known, time_us=made.time_us)

    @cached_property
    def known_by_key(self) -> dict[object, Expected]:
        """The known configs by `Expected.key`, and the recommended one, if that is another."""
        found: dict[object, Expected] = {each.key: each for each in self.known}
        if (best := self.recommended) is not None:
            found.setdefault(best.key, best)
        return found

    def _known(
        self, kernel: str, config: Config, source: str, record: Record | None = None
    ) -> Expected:
        """Returns what a config takes that is known to be good, as `source` says.

        One that was measured for this workload on this device takes the time of its record.

        If the level of its kernel is not known, it replaces one of another kernel only as a config
        that is not known does.
        """
        sure = KNOWN_SURE if math.isfinite(self.levels[kernel].sd) else SURE
        time = _as_compiled(self.times, self.cases[kernel], config, record)
        made = self._at_level(kernel, config, time)
        us = made.time_us
        if record is not None and self._is_exact(record):
            us = record.median_us
        return Expected(kernel, config, us, made.level_sd, KNOWN_SD, source, sure, record)

    def _is_exact(self, record: Record | None) -> bool:
        """Whether a record was measured for this workload on this device."""
        if record is None or record.device != self.target.device.name:
            return False
        return record.workload == self.workload

    def _at_level(self, kernel: str, config: Config, made: Estimate) -> Expected:
        level = self.levels[kernel]
        level_sd = min(level.sd, made.sd)  # that of a kernel without a record is infinite
        return Expected(kernel, config, level.factor * made.time_us, level_sd, made.comparison_sd)


def as_if_exact(record: Record, workload: Workload, target: Target) -> bool:
    """Whether a record's config was compared with others on as many SMs for this very workload."""
    own, quick = record.workload, ("op", "seqlen_q", "seqlen_k")  # whole workloads take longer
    if record.device is None or any(getattr(own, x, 0) != getattr(workload, x, 0) for x in quick):
        return False
    if replace(own, dtype=workload.dtype) != workload:
        return False
    device = _device(record, target.arch)
    return device is not None and device.sms == target.device.sms


def _as_compiled(times: Times, case: Case, config: Config, record: Record | None) -> Estimate:
    """The estimate for a record's config with the resources that the compiler reported for it.

    It is the one before compiling if there is no record, or its resources are missing or cannot be
    right, as nothing could run with them.
    """
    compiled = None if record is None else record.resources
    if compiled is not None and compiled.registers is not None:
        made = times.estimate(case, config, compiled)
        if math.isfinite(made.time_us):
            return made
    return times.estimate(case, config)


def _on_its_device(case: Case, record: Record) -> Case | None:
    """The case that a record was measured for; None if the arch's file lacks its device."""
    target = case.target
    if record.device != target.device.name:
        device = _device(record, case.arch)
        if device is None:
            return None
        target = Target(case.arch, device)
    return replace(case, target=target, workload=record.workload)


def _device(record: Record, arch: Arch) -> Device | None:
    with contextlib.suppress(TunefaError):
        return arch.device(record.device)
    return None
