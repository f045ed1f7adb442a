"""The time that a config is expected to take, and how sure that is, without running it.

The cost model of the chip gives a time. Where something was learned about the kernel on this arch
(`tunefa.costmodel.learned`), it corrects that time, and its errors on workloads that it was not
learned from say how sure the time is. Elsewhere the stated error of the cost model counts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tunefa.costmodel import latency, learned
from tunefa.costmodel import npu as npu_model
from tunefa.costmodel.features import features, model_keys
from tunefa.costmodel.learned import HeldOut, LearnedModel
from tunefa.costmodel.ranking import MODEL_ERROR, TIME_SD
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import NpuArch
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources


@dataclass(frozen=True)
class Estimate:
    """The time that one launch is expected to take."""

    time_us: float
    """Infinity means that the config cannot run."""
    sd: float
    """The standard deviation of log(measured time / `time_us`)."""
    comparison_sd: float
    """The standard deviation of the logarithm of the ratio of two configs' times on one workload:
    errors that both have in common cancel."""


NO_ESTIMATE = Estimate(0.0, 0.0, 0.0)
"""The estimate for a kernel that calls a library: its time is not known before it is measured."""


@dataclass(frozen=True)
class Compared:
    """Measurements with which the predicted times of one kernel were compared."""

    kernel: str
    devices: tuple[str, ...]
    figures: HeldOut


def estimate(case: Case, config: Config, resources: Resources | None = None) -> Estimate:
    """Returns the time of one launch by the models for the case's arch.

    `resources` are the compiler's. Before compiling, None stands for the lower bounds of the search
    space.
    """
    return _estimates(case, [config], [resources])[0]


def expected_us(case: Case, config: Config) -> float:
    """Returns the time of one launch in us, before compiling; infinity where it cannot run."""
    return estimate(case, config).time_us


def estimates(
    case: Case, configs: Sequence[Config], resources: Sequence[Resources] | None = None
) -> list[Estimate]:
    """Returns the estimate of each config, 30,000 of them in seconds; before it is compiled, if its
    `resources` are not given."""
    return _estimates(case, configs, resources or [None] * len(configs))


def by_model(
    model: LearnedModel | None,
    case: Case,
    configs: Sequence[Config],
    resources: Sequence[Resources | None],
) -> list[Estimate]:
    """Returns estimates for a GPU by one learned model, None for the cost model alone."""
    found = features(case, configs, resources)
    if model is None or not model.fits(found):
        return [Estimate(us, *errors(None, 0.0)) for us in found.analytic_us.tolist()]
    trust = model.trust(case)
    times = found.analytic_us * np.exp(trust * model.correction(found))
    return [Estimate(us, *errors(model, trust)) for us in times.tolist()]


def errors(model: LearnedModel | None, trust: float) -> tuple[float, float]:
    """Returns (sd, comparison_sd) of estimates by a learned model that is trusted so far."""
    if model is None or (figures := model.figures) is None:
        return TIME_SD, math.log1p(MODEL_ERROR)
    return (
        _mixed(trust, figures.sd, figures.analytic_sd),
        _mixed(trust, figures.comparison_sd, figures.analytic_comparison_sd),
    )


def learned_parameters(case: Case) -> frozenset[str]:
    """Returns the parameters whose values a model tells apart that was learned from measurements of
    the case's kernel on its arch; none where there is no such model."""
    model = learned.load(case.kernel.name, case.arch.name)
    if model is None:
        return frozenset()
    names = (parameter.name for parameter in case.kernel.space.parameters)
    return frozenset(name for name in names if name in model.names)


def compared_with(arch: str, op: str = "fwd") -> tuple[Compared, ...]:
    """Returns the comparisons of an op's predicted times with devices of the arch, a kernel each.

    It is empty where predictions were never compared: these rest on published figures only.
    """
    if op != "fwd":  # nothing is learned of other ops
        return ()
    models = [learned.load(name, arch) for name in kernels.names()]
    return tuple(
        Compared(model.kernel, tuple(model.provenance.get("devices", ())), model.figures)
        for model in models
        if model is not None and model.figures is not None
    )


def devices_compared(arch: str, op: str = "fwd") -> list[str]:
    """Returns the names of the devices of `compared_with`, each once."""
    return list(dict.fromkeys(name for each in compared_with(arch, op) for name in each.devices))


def _estimates(
    case: Case, configs: Sequence[Config], resources: Sequence[Resources | None]
) -> list[Estimate]:
    if case.kernel.is_library:
        return [NO_ESTIMATE] * len(configs)
    if isinstance(case.arch, NpuArch):
        tilings = map(case.npu_tiling, configs)
        times = [npu_model.time_us(case.workload, case.device, tiling) for tiling in tilings]
        return [Estimate(us, 0.0, 0.0) for us in times]
    if case.workload.op != "fwd":  # nothing is learned of other ops
        return _by_latency_model(case, configs, resources)
    return by_model(learned.load(case.kernel.name, case.arch.name), case, configs, resources)


def _by_latency_model(
    case: Case, configs: Sequence[Config], resources: Sequence[Resources | None]
) -> list[Estimate]:
    """Returns the times of the op's latency model alone, with the stated error of attention's.

    The model is asked once for configs that differ only in parameters that it does not know.
    """
    model, error = latency.of(case), math.log1p(MODEL_ERROR)
    keys = model_keys(case, configs, resources)
    known: dict[Hashable, Estimate] = {}
    for config, needed, key in zip(configs, resources, keys, strict=True):
        if key not in known:
            known[key] = Estimate(model.predict(case, config, needed).time_us, TIME_SD, error)
    return [known[key] for key in keys]


def _mixed(trust: float, of_learned: float, of_analytic: float) -> float:
    """Returns the error of a model that is trusted in part; it is never below the learned one."""
    square = trust * of_learned**2 + (1.0 - trust) * max(of_learned, of_analytic) ** 2
    return math.sqrt(square)
