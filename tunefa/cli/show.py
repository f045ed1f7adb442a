"""`tunefa show`: lists the records of the store, or the configs that failed in searches."""

from __future__ import annotations

from typing import Any

import click

from tunefa.cli.reports import failures as failure_reports
from tunefa.cli.reports import next_steps, text
from tunefa.cli.reports import records as reports
from tunefa.cli.workload_options import Selection, record_options
from tunefa.compile import serving
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError, unknown
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.store import failures as failures_in_journals
from tunefa.store import results as store
from tunefa.store.failures import Failure


@click.command()
@record_options
@click.option(
    "--kernel", "names", multiple=True, metavar="NAME", help="Only this kernel; may be repeated."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All records, not only the best of each workload and chip.",
)
@click.option("--failures", "failed", is_flag=True,
              help="Instead of records, the configs that failed in searches, and why.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, failed: bool, everything: bool, **how: Any) -> None:
    """List the best record of each workload and chip: those of your searches, of files that you
    imported, and those that come with tunefa.

    Options for workload and chip select records: a record must match all of them. Under a record
    stands why it is unconfirmed (another Triton or NVRTC is installed) or does not serve (the
    kernel's source changed, say), or that the driver changed.

    With --failures, it lists every config that failed in this machine's searches, the newest search
    first; --last lists only the newest search.

    Needs no GPU.
    """
    if failed and everything:
        raise click.UsageError("--all is for records: leave out --all or --failures")
    if failed:
        _failures(selection, **how)
    else:
        _records(selection, everything, **how)


def _records(selection: Selection, everything: bool, names: tuple[str, ...], as_json: bool) -> None:
    home = store.default_store()
    known = home.records() if everything else serving.best(home, Installed())
    _check(names, {record.kernel for record in known})
    records = selection.among([record for record in known if not names or record.kernel in names])
    if as_json:
        text.emit_json(reports.to_data(records))
        return
    out = text.console()
    if records:
        renewable = next_steps.renewable(reports.show(records, out))
        step = reports.remedy(renewable) if renewable else next_steps.export()
        text.print_command(out, *step)
    else:
        out.print(_none_of(len(known), "record", "store"))
        text.print_command(out, *next_steps.first_search())


def _none_of(count: int, noun: str, place: str) -> str:
    """The sentence for an empty list, which has another reason where there is nothing at all."""
    if not count:
        return f"There are no {noun}s in the {place}."
    return f"None of {text.plural(count, noun)} in the {place} matches."


def _failures(selection: Selection, names: tuple[str, ...], as_json: bool) -> None:
    known = failures_in_journals.failures()
    _check(names, {failure.kernel for failure in known})
    chosen = [each for each in known if not names or each.kernel in names]
    chosen = [each for each in chosen if selection.selects(each)]
    if selection.last:
        chosen = [each for each in chosen if each.search == chosen[0].search]
    if as_json:
        text.emit_json(failure_reports.to_data(chosen))
        return
    out = text.console()
    if not chosen:
        out.print(_none_of(len(known), "failure", "journals"))
        return
    failure_reports.show(chosen, out)
    first = next(filter(_can_be_explained, chosen), None)
    if first is not None:
        config = text.config_text(first.trial.config, ",")
        words = ["--arch", first.arch, "-w", str(first.workload), "--kernel", first.kernel]
        line = text.command("tunefa", "explain", *words, "-c", config)
        which = "the first config" if first is chosen[0] else "this config"
        text.print_command(out, f"Next: see what limits {which}", line)


def _can_be_explained(failure: Failure) -> bool:
    """Whether the failure's kernel and config are still those of a space: its search may be old."""
    from tunefa.cli.explain import parse_config  # it brings numpy

    try:
        workload, arch = failure.workload, archs.load(failure.arch)
        (kernel,) = kernels.serving(workload, arch, [failure.kernel])
        parse_config(text.config_text(failure.trial.config, ","), kernel)
    except TunefaError:
        return False
    return True


def _check(names: tuple[str, ...], seen: set[str]) -> None:
    """Raises TunefaError for a kernel that is neither installed nor in the list."""
    known = sorted({*kernels.names(), *seen})
    for name in names:
        if name not in known:
            raise unknown("kernel", name, known)
