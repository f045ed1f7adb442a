"""The report of a search: the best trials, the failures, the refusals, and the record."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tunefa.cli.reports import compared, potential, text, trial_rows, trial_table
from tunefa.cli.reports.space import show_refusals
from tunefa.search.request import Result
from tunefa.spec.trial import OUTCOMES
from tunefa.store import prediction
from tunefa.store.prediction import Interval
from tunefa.store.record import Record

_LABELS = {
    "predicted": "PREDICTED by the cost model for a chip that is not here; nothing was measured",
    "modelled": "MODELLED: the compiler says what fits, a latency model the time; no NPU was used",
    "estimated": "ESTIMATED: formulas say what fits, a latency model the time; no compiler ran",
    "replayed": "REPLAYED from a recorded search; nothing was measured or stored",
    "eager": "MEASURED on this machine's device in eager mode: the longer of device and host time",
    "graph": "MEASURED on this machine's device, replayed in a CUDA graph: the device time",
    "step": "MEASURED on this machine's device: what it adds to a CUDA graph with other kernels",
}
_REASON_CHARACTERS = 160


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
        "top": [row.to_data() for row in trial_rows.rows(result)],
        **potential.to_data(result),
        "compared_with": compared.to_data(request.target.arch, request.workload.op),
        "trials": len(result.finished),
        "programs": _programs(result) or None,
        "failures": dict(_failures(result)),
        "left_early": dict(result.left_early),
        "settled": dict(result.settled),
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
        best = "the record is the best config so far" if result.record else "there is no record"
        out.print(text.heading(f"Interrupted: {best}."))
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
    trial_table.show(result, out)
    _show_failures(result, out)
    for name, found in result.feasible.items():
        out.print()
        out.print(f"{name}: the rules leave {len(found.configs):,} of {found.total:,} configs")
        if len(result.feasible) > 1:
            out.print(_best_of(result, name))
        if name in result.settled:
            left = text.plural(result.settled[name], "config")
            out.print(f"{left} not compiled: none of them could change the decision")
        show_refusals(found.refused, out)
    out.print()
    _show_record(result, out_path, out)
    if request.objective in ("predicted", "modelled", "estimated"):
        out.print()
        out.print(compared.sentence(arch, result.request.workload.op))


def _best_of(result: Result, kernel: str) -> str:
    """The trials and the best time of one of several kernels."""
    own = [finished for finished in result.finished if finished.kernel == kernel]
    best = next((each for each in result.top(len(result.finished)) if each.kernel == kernel), None)
    time = f"the best {text.number(best.trial.median_us, 1)} us" if best else "none of them valid"
    behind = result.left_early.get(kernel)
    left = "" if behind is None else f"; given up early, {behind:.0%} slower than another kernel"
    return f"{text.plural(len(own), 'trial')}, {time}{left}"


def _programs(result: Result) -> int:
    """The number of different programs of the trials; 0 where their code is not known."""
    found = ((each.kernel, each.trial.resources) for each in result.finished)
    return len({(kernel, each.code) for kernel, each in found if each and each.code})


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
        if decision := prediction.decision(record):
            out.print(f"Recommended: {decision}")
        out.print(text.facts(_record_facts(result, record)))
    places = {"stored": result.stored, "written": out_path, "journal": result.journal}
    for name, path in places.items():
        if path is not None:  # on one line, so that it can be copied
            out.print(Text.assemble((f"{name:<11}", "dim"), str(path)), soft_wrap=True)


def _record_facts(result: Result, record: Record) -> dict[str, str]:
    unit, rate = text.rate_of(record)
    clock = f"{text.number(record.median_us, 1)} us, {rate} {unit}"
    note = "" if record.objective == "measured" else f" ({record.objective}, not measured)"
    note += text.interval(Interval.of(record), "; ")
    resources = asdict(record.resources) if record.resources else {}
    certificate = {} if record.objective == "predicted" else record.certificate or {}
    return {
        "kernel": record.kernel,
        "config": text.config_text(record.config),
        "time": clock + note,
        **potential.facts(result, record),
        "resources": ", ".join(f"{k} {v:,}" for k, v in resources.items() if v is not None)
        or text.NO_VALUE,
        "check": str(record.provenance.get("check", text.NO_VALUE)),
        **_step_facts(record),
        **_untried_facts(record),
        **({"certified": f"no: {record.not_certified}"} if record.not_certified else {}),
        **_certificate_facts(certificate),
    }


def _step_facts(record: Record) -> dict[str, str]:
    """For a record of --forward-backward: the other pass of the training step."""
    step = record.provenance.get("training_step")
    if not isinstance(step, dict):
        return {}
    return {"step": f"with {step.get('backward') or step.get('forward')}"}


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
