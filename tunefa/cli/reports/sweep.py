"""The output of `tunefa sweep`: its progress, what it has saved, and what is left on the table."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import TaskProgressColumn

from tunefa.cli.reports import text
from tunefa.cli.reports.bar import OnStderr
from tunefa.sweep.item_state import Standing
from tunefa.sweep.outcome import Outcome, finished

_LINE_EVERY_S = 10.0
_POINTS = 5
"""The moments at which the report says what was saved until then."""


class Reporter(OnStderr):
    """Shows the progress of a sweep: a bar on a terminal, else a line every 10 s."""

    def __init__(self) -> None:
        super().__init__("starting workers", 1.0, TaskProgressColumn())
        self._next_line = 0.0
        self._last = ""

    def __call__(self, found: Outcome) -> None:
        """Shows the outcome so far."""
        words = _progress(found)
        whole = found.clock.seconds if found.clock.trials is None else found.clock.trials
        share = min(1.0, found.spent / (whole or 1.0))
        self._bar.update(self._task, completed=share, description=words)
        now = time.monotonic()
        if not self._console.is_terminal and now >= self._next_line and words != self._last:
            self._console.print(f"{words} ({share:.0%} of the budget)", soft_wrap=True)
            self._next_line, self._last = now + _LINE_EVERY_S, words


def _progress(found: Outcome) -> str:
    begun = sum(each.is_begun for each in found.items)
    busy = sum(each.is_busy for each in found.items)
    saved = f", {_share(found.saved, found.weight)} of the weighted time saved" if begun else ""
    return f"{begun} of {len(found.items)} workloads have a record, {busy} in progress{saved}"


def show(found: Outcome, out: Console, joined: bool = False) -> None:
    """Prints the outcome; `joined` says that another process runs the sweep."""
    measured = "" if found.measured else "PREDICTED by the cost model; nothing was measured\n"
    spent = _amount(found, found.spent)
    out.print(
        f"{measured}{text.plural(finished(found.slices), 'slice')} of "
        f"{text.plural(len(found.items), 'workload')} in {spent}",
        soft_wrap=True,
    )
    _print_items(found, out)
    _print_sums(found, out)
    for key, why in found.refused.items():
        out.print(f"{key}: left out, {why}", soft_wrap=True)
    for name, why in found.aside.items():
        out.print(f"{name} was put aside: {why}", soft_wrap=True)
    _print_times(found, out)
    _print_next(found, out, joined)


def _print_items(found: Outcome, out: Console) -> None:
    rows = [("weight", "default us", "record us", "saved", "still", "trials", "workload")]
    for each in found.items:
        still = found.expected[each.key]
        rows.append((
            f"{each.weight:.4g}", text.number(each.default_us, 1), text.number(each.best_us, 1),
            f"{each.gain:.1%}" if each.is_begun and each.default_us else text.NO_VALUE,
            f"{still:.1%}", f"{each.trials:,}", _named(each),
        ))  # fmt: skip
    for *numbers, name in rows:  # the name is on one line, to copy it, whatever the width
        out.print(" ".join(f"{number:>10}" for number in numbers) + f"  {name}", soft_wrap=True)
    out.print(
        "saved: relative to the fastest default of a kernel. still: what the model expects of the "
        "next config; of a workload without a record, a part of what it promises, or 5% where it "
        "was not asked",
        soft_wrap=True,
    )
    slower = [each for each in found.items if (each.best_us or 0.0) > (each.default_us or math.inf)]
    if slower and not found.measured:
        out.print(
            "A record that is slower than the default is within the model's error of it: it is the "
            "config of a measured record of a similar workload, or one without spills",
            soft_wrap=True,
        )


def _named(each: Standing) -> str:
    arch, device, workload = each.key.split("/", 2)
    why = " (given up: it failed too often)" if each.is_given_up else ""
    return f"{workload} on {device} ({arch}){why}"


def _print_sums(found: Outcome, out: Console) -> None:
    saved = _share(found.saved, found.weight)
    out.print(f"Saved: {found.saved:.4g} of {found.weight:.4g} weighted time, {saved}")
    points = _points(found)
    if len(points) > 1:
        course = ", ".join(f"{_share(each, found.weight)} at {_amount(found, at)}"
                           for at, each in points)  # fmt: skip
        out.print(f"Saved over the sweep: {course}", soft_wrap=True)
    left = f"Left on the table: {found.hoped:.4g} expected, {_share(found.hoped, found.weight)}"
    if found.missing:
        weight = sum(each.weight for each in found.missing)
        left += (
            f"; {text.plural(len(found.missing), 'workload')} of weight {weight:.4g} without a "
            "record"
        )
    out.print(left, soft_wrap=True)


def _points(found: Outcome) -> list[tuple[float, float]]:
    course = found.course
    step = max(1, -(-len(course) // _POINTS))
    return course[step - 1 :: step] if course else []


def _print_times(found: Outcome, out: Console) -> None:
    """Prints how each worker spent the time of the sweep."""
    if found.clock.trials is not None or found.spent <= 0:
        return
    for name, gpu in found.gpus.items():
        out.print(
            f"{name} timed and raced for {gpu.busy_s:.0f} of {gpu.present_s:.0f} s "
            f"({_share(gpu.busy_s, gpu.present_s)}). No search was ready for it for "
            f"{gpu.free_s:.0f} s, its search waited for compilers for {gpu.compiling_s:.0f} s, and "
            f"processes started for {gpu.starting_s:.0f} s. While a search waits for compilers, "
            "the GPU may time another one's configs, so these times may overlap",
            soft_wrap=True,
        )
    for name, seconds in ({} if found.gpus else found.busy_s()).items():
        out.print(f"{name or 'worker'} searched for {seconds:.0f} s")


def _print_next(found: Outcome, out: Console, joined: bool) -> None:
    if joined:
        return
    waits = [each for each in found.missing if not each.is_given_up]
    if found.interrupted or found.errors or (found.aside and waits):
        text.print_command(out, "Next: go on, with the same words and", "--resume")
    elif waits:
        seconds, trials = found.clock.seconds, found.clock.trials
        whole = f"{2 * seconds:g}s" if trials is None and seconds else str(2 * (trials or 0))
        out.print(
            "The rest of the budget is too small for another search: "
            f"{text.plural(len(waits), 'workload')} would need more",
            soft_wrap=True,
        )
        label = "Next: go on, with the same words and a larger budget, such as"
        text.print_command(out, label, f"--resume --budget {whole}")
    elif found.items:
        text.print_command(out, "Next: see the records", text.command("tunefa", "show"))


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2%}" if whole > 0 else text.NO_VALUE


def _amount(found: Outcome, amount: float) -> str:
    if found.clock.trials is not None:
        return text.plural(round(amount), "trial")
    return f"{amount:.0f} s"


def to_data(found: Outcome) -> dict[str, Any]:
    """Returns plain data for `--json`."""
    return {
        "study": found.study,
        "storage": found.shown,
        "budget": {"seconds": found.clock.seconds, "trials": found.clock.trials},
        "spent": found.spent,
        "interrupted": found.interrupted,
        "weight": found.weight,
        "saved": found.saved,
        "left": found.hoped,
        "course": [{"at": at, "saved": saved} for at, saved in found.course],
        "workloads": [_item(found, each) for each in found.items],
        "refused": dict(found.refused),
        "put_aside": dict(found.aside),
        "errors": dict(found.errors),
        "busy_s": found.busy_s(),
        "gpus": {
            name: {**asdict(gpu), "busy_share": gpu.busy_share} for name, gpu in found.gpus.items()
        },
    }


def _item(found: Outcome, each: Standing) -> dict[str, Any]:
    arch, device, workload = each.key.split("/", 2)
    last = found.last(each.key)
    return {
        "workload": workload,
        "arch": arch,
        "device": device,
        "weight": each.weight,
        "default_us": each.default_us,
        "best_us": each.best_us,
        "kernel": last.get("kernel"),
        "config": last.get("config"),
        "journal": last.get("journal"),
        "gain": each.gain if each.is_begun else None,
        "expected_gain": found.expected[each.key],
        "trials": each.trials,
        "spent": each.spent,
        "given_up": each.is_given_up,
    }
