"""The table of a search's best trials, and of the default.

A model gives many configs one time. Such configs are one row, which says in what they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from tunefa.cli.reports import text
from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel.ranking import MODEL_ERROR, rank_us
from tunefa.search import candidates
from tunefa.search.request import FinishedTrial, Request, Result
from tunefa.spec.arch import GpuArch
from tunefa.spec.trial import Config, Resources, identity

_TOP = 5
_LEAST_CONFIG = 26
"""The least columns for a config beside its figures: the longest name of a kernel and a gap."""
_KERNEL = "kernel"
_FIGURES = {
    "nvidia": ("us", "TFLOP/s", "regs", "smem\nKiB", "CTAs\nper SM", "limiter"),
    "huawei": ("us", "TFLOP/s", "UB\nKiB", "L1\nKiB", "L0C\nKiB"),
}


@dataclass(frozen=True)
class Row:
    """Trials that have one time, and what the cost model says about them."""

    request: Request
    members: tuple[FinishedTrial, ...]
    """One trial; several where a model cannot tell them apart. The first stands for all."""

    @property
    def first(self) -> FinishedTrial:
        """The trial whose config is shown."""
        return self.members[0]

    @property
    def median_us(self) -> float:
        """The time that all of them have."""
        return self.first.trial.median_us or float("inf")

    @property
    def tflops(self) -> float:
        """The rate that all of them have."""
        return self.request.workload.flops / self.median_us / 1e6

    @cached_property
    def predictions(self) -> tuple[gpu_model.Prediction, ...]:
        """The prediction of each by the cost model; empty for an NPU and without resources."""
        arch, request = self.request.target.arch, self.request
        cases = {kernel.name: request.case(kernel) for kernel in request.kernels}
        return tuple(
            gpu_model.predict(
                request.workload,
                arch,
                request.target.device,
                cases[each.kernel].tiling(each.trial.config),
                each.trial.resources,
            )
            for each in self.members
            if isinstance(arch, GpuArch) and each.trial.resources is not None
        )

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
        trial = self.first.trial
        predicted = self.predictions[0] if self.predictions else None
        return {
            "kernel": self.first.kernel,
            "config": dict(trial.config),
            "median_us": self.median_us,
            "tflops": self.tflops,
            "resources": asdict(trial.resources) if trial.resources else None,
            "blocks_per_sm": predicted.occupancy.blocks_per_sm if predicted else None,
            "limiter": predicted.limiter if predicted else None,
            "group": self._group() if len(self.members) > 1 else None,
        }

    def _group(self) -> dict[str, Any]:
        configs = [{"kernel": m.kernel, "config": dict(m.trial.config)} for m in self.members]
        return {"size": len(self.members), "differ": self.differ, "configs": configs}

    def cells(self) -> list[str]:
        """The figures, in the order of `_FIGURES`; a range where the members differ."""
        times = [text.number(self.median_us, 1), text.number(self.tflops, 1)]
        found = [member.trial.resources or Resources() for member in self.members]
        if found[0].planned is not None:
            names = ("ub_bytes", "l1_bytes", "l0c_bytes")
            return [*times, *(_range([text.kib(getattr(r, n)) for r in found]) for n in names)]
        return [
            *times,
            _range([text.number(each.registers) for each in found]),
            _range([text.kib(each.smem_bytes) for each in found]),
            _range([text.number(each.occupancy.blocks_per_sm) for each in self.predictions]),
            "/".join(dict.fromkeys(each.limiter for each in self.predictions)) or text.NO_VALUE,
        ]

    def said(self, left_out: Config, with_kernel: bool) -> str:
        """The config without the parameters in `left_out`, and in what the members differ."""
        own = {k: v for k, v in self.first.trial.config.items() if k not in left_out}
        line = (f"{self.first.kernel} " if with_kernel else "") + text.config_text(own)
        if len(self.members) == 1:
            return line
        differ = "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in self.differ.items())
        return f"{line}\n{len(self.members)} configs, the model cannot tell them apart: {differ}"


def rows(result: Result) -> list[Row]:
    """The rows of the best trials. Where nothing was measured, trials with one time are one row."""
    groups: list[list[FinishedTrial]] = []
    measured = result.request.objective in ("measured", "replayed")
    for finished in result.top(len(result.finished)):
        same = groups and rank_us(groups[-1][0].trial) == rank_us(finished.trial)
        if same and not measured:
            groups[-1].append(finished)
        elif len(groups) == _TOP:
            break
        else:
            groups.append([finished])
    return [Row(result.request, tuple(group)) for group in groups]


def default_row(result: Result) -> Row | None:
    """The row of the config that runs without a record: the default of the kernel with the lowest
    `priority` whose default is right. None if no default is."""
    request = result.request
    finished = {(each.kernel, identity(each.trial.config)): each for each in result.finished}
    for kernel in sorted(request.kernels, key=lambda kernel: kernel.priority):
        config = candidates.default(request.case(kernel))
        found = None if config is None else finished.get((kernel.name, identity(config)))
        if found is not None and found.trial.outcome == "ok" and found.trial.median_us:
            return Row(request, (found,))
    return None


def show(result: Result, out: Console) -> None:
    """Prints the best trials. Parameters that all rows of a kernel share stand below the table."""
    best, default = rows(result), default_row(result)
    if not best:
        return
    figures = _FIGURES[result.request.target.arch.vendor]
    every = [*best, *([default] if default else [])]
    kernels = list(dict.fromkeys(member.kernel for row in every for member in row.members))
    shared = {kernel: _shared(every, kernel) for kernel in kernels}
    right = ("", *(figure for figure in figures if figure != "limiter"))
    several = len(kernels) > 1
    said = [row.said(shared[row.first.kernel], several) for row in every]
    if default is not None:
        said[-1] = f"default: {said[-1]}"
    places = [str(place) for place in range(1, len(best) + 1)] + [""] * (len(every) - len(best))
    out.print()
    figures_of = [row.cells() for row in every]
    wide = _print_rows(out, (figures, right), places, figures_of, said)
    times = [row.median_us for row in best]
    if times != sorted(times):
        out.print(
            f"order: a config that spills registers counts as {MODEL_ERROR:.0%} slower, "
            "the model's error",
            style="dim",
        )
    if "limiter" in figures:
        out.print(
            "limiter: what limits the config by the cost model, see `tunefa explain`", style="dim"
        )
    whose = {kernel: f"all {kernel}" if several else "all of them" for kernel in kernels}
    common = {whose[each]: text.config_text(config) for each, config in shared.items() if config}
    if common and wide:
        out.print(text.facts(common))
    else:
        for whose_config, shared_part in common.items():
            out.print(f"{whose_config} {shared_part}")


def _print_rows(
    out: Console,
    columns: tuple[Sequence[str], tuple[str, ...]],
    places: Sequence[str],
    cells: Sequence[Sequence[str]],
    said: Sequence[str],
) -> bool:
    """Prints the figures of each row and its config, and returns whether they are a table.

    They are none where the terminal is too narrow for it: there a row is its figures in words. The
    row without a place, of the default, is dim in a table.
    """
    figures, right = columns
    alone = text.table("", *figures, right=right)
    beside = text.table("", *figures, "config", right=right)
    words: dict[str, str] = {}
    for place, row, config in zip(places, cells, said, strict=True):
        alone.add_row(place, *row)
        beside.add_row(place, *row, Text(config, style="" if place else "dim"))
        named = [
            f"{figure} {cell}".replace("\n", " ") for figure, cell in zip(figures, row, strict=True)
        ]
        words[place] = f"{', '.join(named)}\n{config}"
    fits = out.width - Measurement.get(out, out.options.update(width=1000), alone).maximum
    if fits >= _LEAST_CONFIG:
        out.print(beside)
    else:
        out.print(text.facts(words))
    return fits >= _LEAST_CONFIG


def _shared(every: Sequence[Row], kernel: str) -> Mapping[str, Any]:
    """The parameters that all configs of a kernel in the table share, if there are several."""
    trials = [member.trial for row in every for member in row.members if member.kernel == kernel]
    first, *others = [trial.config for trial in trials]
    return {
        name: value
        for name, value in first.items()
        if others and all(config[name] == value for config in others)
    }


def _range(values: Sequence[str]) -> str:
    """One value, or the first and the last of several in the order of their sizes."""
    distinct = sorted(set(values), key=lambda value: (len(value.partition(".")[0]), value))
    if not distinct:
        return text.NO_VALUE
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]}-{distinct[-1]}"
