"""The rows of the table of a search's best trials: configs that can be told apart.

A prediction is never exact, and two configs whose predicted times differ by less than the error of
the comparison cannot be told apart. Such configs are one row, which says in what they differ. So
are measured configs that are one program: a search times them once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from tunefa.cli.reports import text
from tunefa.costmodel import latency
from tunefa.costmodel.before_compiling import order_parameters
from tunefa.costmodel.decision import SURE
from tunefa.costmodel.estimate import estimate
from tunefa.costmodel.gpu import Prediction
from tunefa.costmodel.ranking import rank_us
from tunefa.search import candidates
from tunefa.search.request import FinishedTrial, Request, Result
from tunefa.spec.arch import GpuArch
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources, identity
from tunefa.store.prediction import Interval

_TOP = 5
_KERNEL = "kernel"
LIMITER = "limiter"


@dataclass(frozen=True)
class Row:
    """Trials that cannot be told apart, and what the cost model says about them."""

    request: Request
    members: tuple[FinishedTrial, ...]
    """One trial; several where they cannot be told apart. The first stands for all."""

    @property
    def first(self) -> FinishedTrial:
        """The trial whose config is shown."""
        return self.members[0]

    @property
    def median_us(self) -> float:
        """The time of the first."""
        return self.first.trial.median_us or float("inf")

    @property
    def times_us(self) -> tuple[float, float]:
        """The least and the greatest time of the members."""
        known = [each.trial.median_us for each in self.members if each.trial.median_us]
        return min(known, default=math.inf), max(known, default=math.inf)

    @property
    def is_doubted(self) -> bool:
        """Whether a member stands further below than its time says, see `ranking.rank_us`."""
        trials = [member.trial for member in self.members]
        return any(rank_us(trial) != trial.median_us for trial in trials)

    @property
    def tflops(self) -> float:
        """The rate of the first."""
        return self.request.workload.flops / self.median_us / 1e6

    @property
    def interval(self) -> Interval | None:
        """The interval of the first's predicted time; None for a time that was measured."""
        trial = self.first.trial
        return None if trial.samples_us else Interval.around(trial.median_us, trial.predicted_sd)

    @cached_property
    def prediction(self) -> Prediction | None:
        """The cost model's prediction for the first; None for an NPU, a library and without
        resources."""
        arch, trial = self.request.target.arch, self.first.trial
        if not isinstance(arch, GpuArch) or trial.resources is None or self.case.kernel.is_library:
            return None
        return latency.of(self.case).predict(self.case, trial.config, trial.resources)

    @property
    def case(self) -> Case:
        """The case of the first."""
        kernels = {kernel.name: kernel for kernel in self.request.kernels}
        return self.request.case(kernels[self.first.kernel])

    def comparison_error(self, other: FinishedTrial | None = None) -> float:
        """The error with which the model compares the first with another trial, relative; with None
        the error for another config of the same kernel.

        The errors of two kernels are independent, so their variances add.
        """
        own = self.first.trial
        if other is not None and other.kernel != self.first.kernel:
            sd = math.hypot(own.predicted_sd or 0.0, other.trial.predicted_sd or 0.0)
        else:
            sd = estimate(self.case, own.config, own.resources).comparison_sd
        return math.expm1(SURE * sd)

    def is_apart(self, other: FinishedTrial) -> bool:
        """Whether another trial, which is not faster, can be told from the first: a predicted one
        by the model, a measured one as another program."""
        if self.is_measured:
            code = self._program(self.first)
            return code is None or code != self._program(other)
        ratio = rank_us(other.trial) / rank_us(self.first.trial)
        return ratio > 1 + self.comparison_error(other)

    @property
    def is_measured(self) -> bool:
        """Whether the times come from a device."""
        return self.request.objective in ("measured", "replayed")

    def _program(self, each: FinishedTrial) -> tuple[object, ...] | None:
        """Equal for trials of one machine code that run its tiles in one order; None where the code
        is not known."""
        code = each.trial.resources.code if each.trial.resources else None
        if code is None or each.kernel != self.first.kernel:
            return None
        sections = order_parameters(self.case.kernel.space)
        return code, *(each.trial.config[name] for name in sections)

    @property
    def differ(self) -> dict[str, list[Any]]:
        """The parameters in which the members differ, with their values; `kernel` is one."""
        kernels = list(dict.fromkeys(each.kernel for each in self.members))
        if len(kernels) > 1:
            return {_KERNEL: kernels}
        values = {
            name: list(dict.fromkeys(each.trial.config[name] for each in self.members))
            for name in self.first.trial.config
        }
        return {name: several for name, several in values.items() if len(several) > 1}

    def to_data(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        trial, interval = self.first.trial, self.interval
        predicted = self.prediction
        return {
            "kernel": self.first.kernel,
            "config": dict(trial.config),
            "median_us": self.median_us,
            "interval_us": interval.to_data() if interval else None,
            "tflops": self.tflops,
            "resources": asdict(trial.resources) if trial.resources else None,
            "blocks_per_sm": predicted.occupancy.blocks_per_sm if predicted else None,
            "limiter": predicted.limiter if predicted else None,
            "group": self._group() if len(self.members) > 1 else None,
        }

    def _group(self) -> dict[str, Any]:
        configs = [
            {
                "kernel": each.kernel,
                "config": dict(each.trial.config),
                "median_us": each.trial.median_us,
            }
            for each in self.members
        ]
        return {
            "size": len(self.members),
            "error": 0.0 if self.is_measured else self.comparison_error(),
            "differ": self.differ,
            "configs": configs,
        }

    def figures(self) -> dict[str, str]:
        """The figures of the first, by the heads of their columns."""
        shown = {"us": text.number(self.median_us, 1)}
        if self.interval is not None:
            shown[text.INTERVAL] = str(self.interval)
        unit, rate = text.rate(self.request.workload, self.median_us)
        shown[unit] = rate
        used, found = self.first.trial.resources or Resources(), self.prediction
        if used.planned is not None:
            planned = {"UB": used.ub_bytes, "L1": used.l1_bytes, "L0C": used.l0c_bytes}
            return shown | {f"{name}\nKiB": text.kib(size) for name, size in planned.items()}
        return shown | {
            "regs": text.number(used.registers),
            "smem\nKiB": text.kib(used.smem_bytes),
            "CTAs\nper SM": text.number(found.occupancy.blocks_per_sm if found else None),
            LIMITER: found.limiter if found else text.NO_VALUE,
        }

    def config(self, left_out: Config, with_kernel: bool) -> str:
        """The config of the first without the parameters in `left_out`."""
        own = {k: v for k, v in self.first.trial.config.items() if k not in left_out}
        return (f"{self.first.kernel} " if with_kernel else "") + text.config_text(own)

    def group(self, among: Sequence[str]) -> str:
        """The sentence about configs that cannot be told apart; empty for one config.

        `among` names some of them, such as the default.
        """
        if len(self.members) == 1:
            return ""
        low, high = (text.number(each, 1) for each in self.times_us)
        times = "" if low == high else f", {low} to {high} us,"
        with_them = f", the {' and the '.join(among)} among them" if among else ""
        differ = dict(self.differ)
        kernels = f" of {text.listed(differ.pop(_KERNEL))}" if _KERNEL in differ else ""
        values = "; ".join(f"{name} {', '.join(map(str, each))}" for name, each in differ.items())
        said = f"{len(self.members)} configs{kernels}{times} that the model cannot tell apart"
        if self.is_measured:
            said = f"{len(self.members)} configs that compile to one program"
        return f"{said}{with_them}" + (f": {values}" if values else "")


def rows(result: Result) -> list[Row]:
    """The rows of the best trials. A trial is in the row of the first better one from which it
    cannot be told."""
    request, made = result.request, list[Row]()
    for finished in result.top(len(result.finished)):
        alike = (row for row in made if not row.is_apart(finished))
        if (row := next(iter(alike), None)) is not None:
            made[made.index(row)] = replace(row, members=(*row.members, finished))
        else:
            made.append(Row(request, (finished,)))
    return made[:_TOP]


def default_row(result: Result) -> Row | None:
    """The row of the config that runs without a record: the default of the kernel with the lowest
    `priority` whose default is right. None if no default is."""
    request = result.request
    finished = {(each.kernel, identity(each.trial.config)): each for each in result.finished}
    asked = request.workload, request.target.arch
    for kernel in sorted(request.kernels, key=lambda kernel: kernel.priority(*asked)):
        config = candidates.default(request.case(kernel))
        found = None if config is None else finished.get((kernel.name, identity(config)))
        if found is not None and found.trial.outcome == "ok" and found.trial.median_us:
            return Row(request, (found,))
    return None


def named(result: Result) -> dict[str, Row]:
    """The rows of single configs that reports name: the one that a predicted search recommends,
    and the default."""
    record, default, found = result.record, default_row(result), dict[str, Row]()
    if record is not None and record.objective == "predicted":
        own = next((each for each in result.finished if each.is_of(record)), None)
        found |= {"recommended": Row(result.request, (own,))} if own else {}
    return found | ({"default": default} if default else {})


def shared(every: Sequence[Row], kernel: str) -> Mapping[str, Any]:
    """The parameters that all configs of a kernel in some rows share, if there are several."""
    trials = [member.trial for row in every for member in row.members if member.kernel == kernel]
    first, *others = [trial.config for trial in trials]
    return {
        name: value
        for name, value in first.items()
        if others and all(config[name] == value for config in others)
    }
