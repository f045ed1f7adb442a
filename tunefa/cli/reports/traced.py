"""The output of `tunefa trace`: a program's calls, and what tuning its workloads would save."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tunefa.cli import looked_up_notes
from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection
from tunefa.costmodel.estimate import estimates, expected_us
from tunefa.errors import TunefaError
from tunefa.runtime import choose
from tunefa.spec import kernel as kernels
from tunefa.spec import looked_up
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store import results as store
from tunefa.store.traced import Calls, Traced


@dataclass(frozen=True)
class Saving:
    """The time that tuning one workload would save."""

    workload: str
    calls: int
    seconds: float
    """The time of all calls of the traced program."""
    now_us: float | None
    """The time of one call of the traced program; None where it is not known."""
    untuned_us: float | None
    """The expected time of what tunefa runs today, without a search; None where nothing is known
    of it."""
    tuned_us: float | None
    """The least time that the latency model expects of any config; that of the record, where the
    workload was measured."""
    saves_s: float | None
    """Seconds of all calls that `tuned_us` would save; the same part of the weight where the number
    of calls is not known."""
    why: str = ""
    """The reason that nothing is known."""


def show(found: Traced, selection: Selection, path: Path, as_json: bool) -> None:
    """Prints what tuning each workload would save on the selected chip."""
    target = selection.target
    there = found.device == target.device.name
    savings = [saving(each, found.workloads[each], target, there) for each in found.heaviest]
    savings.sort(key=lambda each: -(each.saves_s or 0.0))
    if as_json:
        of_trace = to_data(found)
        text.emit_json({**of_trace, "target": str(target), "savings": list(map(asdict, savings))})
        return
    out = text.console()
    if not there:
        measured = f"measured on {found.device}" if found.device else "measured elsewhere"
        out.print(f"The trace was {measured}: what tuning saves on {target} is against tunefa "
                  f"without a search there.", soft_wrap=True)  # fmt: skip
    rows = [("saves s", "calls", "now us", "untuned us", "tuned us", "workload")]
    for each in savings:
        saves, calls = text.number(each.saves_s, 3), text.number(each.calls or None)
        now, untuned, tuned = (
            text.number(us, 1) for us in (each.now_us, each.untuned_us, each.tuned_us)
        )
        rows.append((saves, calls, now, untuned, tuned, each.workload))
    for *numbers, name in rows:  # the name is on one line, to copy it, whatever the width
        line = " ".join(f"{number:>10}" for number in numbers)
        out.print(f"{line}  {name}", soft_wrap=True)
    for each in savings:
        if each.why:
            out.print(f"{each.workload}: {each.why}", soft_wrap=True)
    out.print("now: of the trace; untuned, tuned: of a record, or predicted by the latency model, "
              "which promises most where it errs most", soft_wrap=True)  # fmt: skip
    chip = [] if selection.present else selection.chip_words
    line = text.command("tunefa", "search", "--workloads", str(path), "--top", "10", *chip)
    text.print_command(out, "Next: tune them", line)


def saving(workload: Workload, calls: Calls, target: Target, is_there: bool) -> Saving:
    """Returns what tuning a workload would save on a target; `is_there` says whether the trace was
    measured on it."""
    now_us = 1e6 * calls.seconds / calls.count if calls.seconds and calls.count else None
    given = str(workload), calls.count, calls.seconds, now_us
    try:
        untuned_us, tuned_us = expected(workload, target)
    except TunefaError as error:
        return Saving(*given, None, None, None, str(error))
    before = now_us if is_there else untuned_us
    if before is None:
        return Saving(*given, untuned_us, tuned_us, None)
    whole = before * calls.count / 1e6 if calls.count else calls.seconds
    return Saving(*given, untuned_us, tuned_us, max(0.0, 1.0 - tuned_us / before) * whole)


def expected(workload: Workload, target: Target) -> tuple[float | None, float]:
    """Returns the expected times in us of what runs without a search, and of the best config.

    Raises TunefaError where no kernel of tunefa serves the workload.
    """
    runs = looked_up_notes.run_as(workload, target)
    asked = looked_up.of_record(runs)
    serving = kernels.serving(asked, target.arch)
    choice = choose.choose(store.default_store(), asked, target, serving)
    if choice.how == "exact" and choice.record is not None and asked == workload:
        return choice.record.median_us, choice.record.median_us
    cases = {each.name: Case(each, runs, target) for each in serving}
    times = [expected_us(cases[choice.kernel], choice.config)]
    for case in cases.values():
        times += [each.time_us for each in estimates(case, case.feasible().configs)]
    known = [time for time in times if 0.0 < time < math.inf]
    if not known:
        raise TunefaError(f"the latency model knows no time of {workload} on {target}")
    return (times[0] if times[0] in known else None), min(known)


def to_data(found: Traced) -> dict[str, Any]:
    """Plain data for `--json`: the calls of the program."""
    return {
        "device": found.device,
        "workloads": [
            {"workload": str(each), **asdict(found.workloads[each])} for each in found.heaviest
        ],
        "other": [{"what": what, **asdict(calls)} for what, calls in found.other.items()],
    }


def print_calls(found: Traced, out: Console) -> None:
    """Prints the calls of the program."""
    table = text.table("s", "calls", "workload", right=("s", "calls"))
    rows = [(found.workloads[each], str(each)) for each in found.heaviest]
    for calls, name in (*rows, *((calls, what) for what, calls in found.other.items())):
        table.add_row(f"{calls.seconds:.3f}", f"{calls.count:,}", name)
    out.print(table)
