"""The report of a search: the five best trials, the failures, the refusals, and the record."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tunefa.cli.reports import text
from tunefa.cli.reports.space import show_refusals
from tunefa.costmodel import gpu as gpu_model
from tunefa.search.request import FinishedTrial, Result
from tunefa.spec.arch import GpuArch
from tunefa.spec.trial import OUTCOMES, Resources
from tunefa.store.record import Record

_TOP = 5
_LABELS = {
    "predicted": "PREDICTED by the cost model for a chip that is not here; nothing was measured",
    "modelled": "MODELLED: the compiler says what fits, a latency model the time; no NPU was used",
    "estimated": "ESTIMATED: formulas say what fits, a latency model the time; no compiler ran",
    "replayed": "REPLAYED from a recorded search; nothing was measured or stored",
    "eager": "MEASURED on this machine's device in eager mode: the longer of device and host time",
    "graph": "MEASURED on this machine's device, replayed in a CUDA graph: the device time",
}
_FIGURES = {
    "nvidia": ("us", "TFLOP/s", "regs", "smem\nKiB", "CTAs\nper SM", "limiter"),
    "huawei": ("us", "TFLOP/s", "UB\nKiB", "L1\nKiB", "L0C\nKiB"),
}
_REASON_CHARACTERS = 160


@dataclass(frozen=True)
class _Row:
    """A trial, and what the cost model says about it."""

    finished: FinishedTrial
    median_us: float
    tflops: float
    blocks_per_sm: int | None = None
    """Only for a GPU, as `limiter`."""
    limiter: str | None = None

    def to_data(self) -> dict[str, Any]:
        trial = self.finished.trial
        return {
            "kernel": self.finished.kernel,
            "config": dict(trial.config),
            "median_us": self.median_us,
            "tflops": self.tflops,
            "resources": asdict(trial.resources) if trial.resources else None,
            "blocks_per_sm": self.blocks_per_sm,
            "limiter": self.limiter,
        }

    def cells(self) -> list[str]:
        """The figures, in the order of `_FIGURES`."""
        times = [text.number(self.median_us, 1), text.number(self.tflops, 1)]
        found = self.finished.trial.resources or Resources()
        if found.planned is not None:
            return [*times, *map(text.kib, (found.ub_bytes, found.l1_bytes, found.l0c_bytes))]
        block = [text.number(found.registers), text.kib(found.smem_bytes)]
        return [*times, *block, text.number(self.blocks_per_sm), self.limiter or text.NO_VALUE]


def to_data(result: Result, out_path: Path | None) -> dict[str, Any]:
    """Plain data for `--json`: everything that `show` prints."""
    request = result.request
    return {
        "workload": str(request.workload),
        "arch": request.target.arch.name,
        "device": request.target.device.name,
        "objective": request.objective,
        "mode": request.serving_mode,
        "interrupted": result.interrupted,
        "record": result.record.to_dict() if result.record else None,
        "top": [row.to_data() for row in _rows(result)],
        "trials": len(result.finished),
        "programs": _programs(result) or None,
        "failures": dict(_failures(result)),
        "left_early": dict(result.left_early),
        "refused": {name: dict(found.refused) for name, found in result.feasible.items()},
        "feasible": {name: len(found.configs) for name, found in result.feasible.items()},
        "elapsed_s": result.elapsed_s,
        "journal": str(result.journal),
        "stored": str(result.stored) if result.stored else None,
        "out": str(out_path) if out_path else None,
    }


def show(result: Result, out_path: Path | None, out: Console) -> None:
    """Prints the report without the next command."""
    request = result.request
    if result.interrupted:
        out.print(text.heading("Interrupted: the record is the best config so far."))
    out.print(text.heading(f"{request.workload} on {request.target}"))
    out.print(_LABELS[request.mode if request.objective == "measured" else request.objective])
    arch = request.target.arch
    if "experimental" in arch.features:
        out.print(
            f"Support for {arch.name} is EXPERIMENTAL: see tunefa/spec/archs/{arch.name}.yaml"
        )
    programs = _programs(result)
    of = f" of {text.plural(programs, 'program')}" if programs else ""
    out.print(f"{text.plural(len(result.finished), 'trial')}{of} in {result.elapsed_s:.0f} s")
    rows = _rows(result)
    if rows:
        out.print()
        _show_top(rows, _FIGURES[arch.vendor], out)
    _show_failures(result, out)
    for name, found in result.feasible.items():
        out.print()
        out.print(f"{name}: the rules leave {len(found.configs):,} of {found.total:,} configs")
        if len(result.feasible) > 1:
            out.print(_best_of(result, name))
        show_refusals(found.refused, out)
    out.print()
    _show_record(result, out_path, out)


def _best_of(result: Result, kernel: str) -> str:
    """The trials and the best time of one of several kernels."""
    own = [finished for finished in result.finished if finished.kernel == kernel]
    best = next((each for each in result.top(len(result.finished)) if each.kernel == kernel), None)
    time = f"the best {text.number(best.trial.median_us, 1)} us" if best else "none of them valid"
    behind = result.left_early.get(kernel)
    left = "" if behind is None else f"; given up early, {behind:.0%} slower than another kernel"
    return f"{text.plural(len(own), 'trial')}, {time}{left}"


def _rows(result: Result) -> list[_Row]:
    request, rows = result.request, []
    cases = {kernel.name: request.case(kernel) for kernel in request.kernels}
    for finished in result.top(_TOP):
        trial, arch = finished.trial, request.target.arch
        median_us = trial.median_us or float("inf")
        row = _Row(finished, median_us, request.workload.flops / median_us / 1e6)
        if trial.resources is not None and isinstance(arch, GpuArch):
            tiling = cases[finished.kernel].tiling(trial.config)
            prediction = gpu_model.predict(
                request.workload, arch, request.target.device, tiling, trial.resources
            )
            blocks = prediction.occupancy.blocks_per_sm
            row = replace(row, blocks_per_sm=blocks, limiter=prediction.limiter)
        rows.append(row)
    return rows


def _programs(result: Result) -> int:
    """How many different programs the trials for an NPU compiled to; 0 for a GPU."""
    found = (each.trial.resources for each in result.finished)
    codes = {each.planned.code for each in found if each and each.planned}
    return len(codes - {None})


def _show_top(rows: list[_Row], figures: tuple[str, ...], out: Console) -> None:
    """Prints the best trials. Parameters that all rows of a kernel share stand below the table."""
    kernels = list(dict.fromkeys(row.finished.kernel for row in rows))
    shared = {kernel: _shared(rows, kernel) for kernel in kernels}
    right = ("", *(figure for figure in figures if figure != "limiter"))
    top = text.table("", *figures, "config", right=right)
    for place, row in enumerate(rows, start=1):
        of_all = shared[row.finished.kernel]
        own = {k: v for k, v in row.finished.trial.config.items() if k not in of_all}
        kernel = f"{row.finished.kernel} " if len(kernels) > 1 else ""
        top.add_row(str(place), *row.cells(), kernel + text.config_text(own))
    out.print(top)
    if "limiter" in figures:
        out.print(
            "limiter: what limits the config by the cost model, see `tunefa explain`", style="dim"
        )
    whose = {kernel: f"all {kernel}" if len(kernels) > 1 else "all of them" for kernel in kernels}
    common = {whose[each]: text.config_text(config) for each, config in shared.items() if config}
    if common:
        out.print(text.facts(common))


def _shared(rows: list[_Row], kernel: str) -> dict[str, Any]:
    """The parameters that all rows of a kernel share, if there are several rows."""
    first, *others = [row.finished.trial.config for row in rows if row.finished.kernel == kernel]
    return {
        name: value
        for name, value in first.items()
        if others and all(config[name] == value for config in others)
    }


def _failures(result: Result) -> Counter[str]:
    """The number of trials by outcome, without `ok`, in the order of OUTCOMES."""
    counts: Counter[str] = Counter(finished.trial.outcome for finished in result.finished)
    return Counter({kind: counts[kind] for kind in OUTCOMES if kind != "ok" and counts[kind]})


def _show_failures(result: Result, out: Console) -> None:
    failures = _failures(result)
    if not failures:
        return
    made = text.table("failed", "how", "for example", right=("failed",))
    for kind, count in failures.items():
        reasons = Counter(f.trial.reason for f in result.finished if f.trial.outcome == kind)
        reason = reasons.most_common(1)[0][0]
        short = reason if len(reason) <= _REASON_CHARACTERS else reason[:_REASON_CHARACTERS] + "..."
        made.add_row(text.number(count), kind, short)
    out.print()
    out.print(made)


def _show_record(result: Result, out_path: Path | None, out: Console) -> None:
    record = result.record
    if record is None:
        out.print(text.heading("No record: nothing valid was found."))
    else:
        mode = f", {record.mode}" if record.mode else ""
        out.print(text.heading(f"Record, {record.objective}{mode}"))
        out.print(text.facts(_record_facts(record)))
    places = {"stored": result.stored, "written": out_path, "journal": result.journal}
    for name, path in places.items():
        if path is not None:  # on one line, so that it can be copied
            out.print(Text.assemble((f"{name:<11}", "dim"), str(path)), soft_wrap=True)


def _record_facts(record: Record) -> dict[str, str]:
    clock = f"{text.number(record.median_us, 1)} us, {text.number(record.tflops, 1)} TFLOP/s"
    note = "" if record.objective == "measured" else f" ({record.objective}, not measured)"
    resources = asdict(record.resources) if record.resources else {}
    return {
        "kernel": record.kernel,
        "config": text.config_text(record.config),
        "time": clock + note,
        "resources": ", ".join(f"{k} {v:,}" for k, v in resources.items() if v is not None)
        or text.NO_VALUE,
        "check": str(record.provenance.get("check", text.NO_VALUE)),
        **_untried_facts(record),
        **({"certified": f"no: {record.not_certified}"} if record.not_certified else {}),
        **_certificate_facts(record.certificate or {}),
    }


def _untried_facts(record: Record) -> dict[str, str]:
    """For a modelled record: the faster configs not tried, and what the compiler changed."""
    made = record.provenance
    facts = {}
    if "faster_untried" in made:
        left = made["faster_untried"]
        facts["untried"] = (
            f"{text.plural(left, 'config')} that may be faster; a larger --budget tries more"
            if left
            else "no faster config: the compiler says that each of them does not fit"
        )
    if "changed_by_the_compiler" in made:
        changed = text.config_text(made["changed_by_the_compiler"])
        facts["changed"] = f"by the compiler, so that it fits: {changed}"
    return facts


def _certificate_facts(certificate: dict[str, Any]) -> dict[str, str]:
    """The result of the race in words: the decision, the gain, the noise, and the device."""
    facts = {"decision": str(certificate["decision"])} if "decision" in certificate else {}
    if "kernels" in certificate:
        facts["kernels"] = _kernel_race(certificate["kernels"])
    if "noise_floor" not in certificate:  # a replay, or a race that was lost
        return facts
    gain, floor = certificate["gain_over_default"], certificate["noise_floor"]
    if gain is not None:
        facts["gain"] = (
            f"{gain['estimate']:.1%} over the default ({gain['low']:.1%} to {gain['high']:.1%})"
        )
    facts["noise"] = (
        f"{floor:.1%} between two runs of one config, {certificate['rounds']} rounds, "
        f"{certificate['racers']} racers"
    )
    device = certificate["device"]
    if device["watched"]:
        capped = ", at its power limit" if device["power_capped"] else ""
        low, high = device["sm_mhz"]
        facts["device"] = (
            f"{low} to {high} MHz, up to {device['power_w'][1]} W{capped}, "
            f"{device['temperature_c'][1]} C"
        )
    else:
        facts["device"] = "not watched, as NVML did not answer"
    return facts


def _kernel_race(certificate: dict[str, Any]) -> str:
    """The result of the race between the winners of several kernels, in words."""
    slower = [
        f"{kernel} is {by['estimate']:.1%} slower ({by['low']:.1%} to {by['high']:.1%})"
        for kernel, by in certificate.get("slower_by", {}).items()
    ]
    refused = [f"not certified: {certificate['refused']}"] if "refused" in certificate else []
    return "; ".join([certificate["decision"], *slower, *refused])
