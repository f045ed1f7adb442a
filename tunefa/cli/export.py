"""`tunefa export`: writes the best records of the store, or of a file, in any format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tunefa.cli import completion, export_frozen, export_portfolio, export_trials, files
from tunefa.cli.export_portfolio import Found
from tunefa.cli.reports import next_steps, text
from tunefa.cli.reports import portfolio as reports
from tunefa.cli.workload_options import Selection, record_options
from tunefa.errors import TunefaError
from tunefa.runtime.lock_file import VARIABLE
from tunefa.store import exports
from tunefa.store import results as store
from tunefa.store.record import Record


@dataclass(frozen=True)
class Content:
    """The content of a file, and what is said of it."""

    text: str
    count: int
    noun: str
    """The word for what the file holds: `record` or `trial`."""
    remark: str = ""
    also: Mapping[str, Any] = field(default_factory=dict)
    """The members that --json has beside the count."""


@click.command()
@click.argument("destination", metavar="DEST")
@click.option("--format", "name", metavar="NAME", shell_complete=completion.formats, help=(
    f"Format: {', '.join(exports.names())}.  [default: by DEST's suffix; yaml for -]"))  # fmt: skip
@record_options
@click.option("--from", "origin", metavar="FILE", type=click.Path(path_type=Path),
              help="Take the records from a YAML or JSON file instead of the store.")  # fmt: skip
@click.option("--frozen", is_flag=True, help=(
    "Write a lock file: only measured records, the same bytes for the same store."))  # fmt: skip
@click.option("--unconfirmed", is_flag=True, help=(
    "Into a lock file, write records that were measured with another Triton or NVRTC too; they are "
    "marked."))  # fmt: skip
@export_portfolio.options
@click.option(
    "--json", "as_json", is_flag=True, help="Print what was written as one JSON document."
)
def command(
    destination: str,
    name: str | None,
    selection: Selection,
    as_json: bool,
    **source: Any,
) -> None:
    """Write the best record of each workload and chip to the file DEST, or to standard output if
    DEST is -.

    Records are those of `tunefa show`, with those that come with tunefa. Options for workload and
    chip select some: a record must match all of them.

    With --frozen, DEST (for example tunefa.lock.yaml) is a lock file for all ranks of a job. Use it
    by setting TUNEFA_FROZEN to its path, or by calling tunefa.load(DEST, frozen=True). Attention on
    the GPU then runs exactly the configs in the file. Any other workload, device, kernel source or
    version of Triton and NVRTC is an error; with --unconfirmed, another version is one only if a
    config does not compile. The exit status is 3 if no record is left to write.

    With --portfolio 2%, the records are not the best ones. They have the fewest configs that serve
    every workload of your journals, each at most 2 % slower than the fastest config that was
    measured for it. A lower bound says how few there could be. A config serves only workloads that
    it was measured for, and predictions do not count. Fewer configs mean fewer binaries to compile,
    to check and to load.

    The formats kernel_tuner and t4 hold all trials of the journal that --journal names.

    Needs no GPU.
    """
    if destination == "-" and as_json and name != "json":
        raise click.UsageError("- prints the export itself: give --format json instead of --json")
    format_name = _format_name(destination, name, source["frozen"])
    of_trials = exports.of_trials(format_name)
    _check_usage(source, format_name if of_trials else None)
    if of_trials:
        made = export_trials.content(of_trials, source["journals"], source["names"])
        _write(destination, format_name, Content(*made, "trial"), as_json)
        return
    if destination != "-":
        files.check(Path(destination), format_name)
    found = _portfolio(selection, source)
    records = _chosen(selection, format_name, source) if found is None else found.records
    _check_held(records, format_name)
    if found is not None:
        _report(found, source["plot"], destination == "-", as_json)
    if source["frozen"]:
        records = export_frozen.locked(records, source["unconfirmed"])
    count = sum(map(_holds(format_name), records))
    marked = export_frozen.marked(records)
    if count < len(records):
        marked += f"; {len(records) - count:,} cannot be written so, comments in the file name them"
    also = {"portfolio": reports.to_data(found)} if found and as_json else {}
    content = Content(exports.get(format_name).dump(records), count, "record", marked, also)
    _write(destination, format_name, content, as_json)
    if destination != "-" and not as_json:
        _print_next(text.console(), Path(destination), source["frozen"])


def _write(destination: str, format_name: str, content: Content, as_json: bool) -> None:
    """Writes the file, or standard output, and says what was written."""
    if destination == "-":
        click.echo(content.text, nl=False)
        return
    path = Path(destination)
    files.write(path, content.text, format_name)
    if as_json:
        held = {f"{content.noun}s": content.count, **content.also}
        text.emit_json({"path": str(path), "format": format_name, **held})
        return
    said = f"{text.plural(content.count, content.noun)} as {format_name}"
    text.console().print(f"Wrote {said} to {path}{content.remark}.")


def _print_next(out: Console, path: Path, frozen: bool) -> None:
    """Prints the command that uses the file."""
    if frozen:
        line = text.command("env", f"{VARIABLE}={path.resolve()}", "python", "train.py")
        text.print_command(out, "Next: on every rank", line)
    elif next_steps.is_importable(path):
        line = text.command("tunefa", "import", str(path))
        text.print_command(out, "Next: on another machine", line)


def _check_usage(source: Mapping[str, Any], of_trials: str | None) -> None:
    """Raises click.UsageError for options that do not go together.

    `of_trials` is the name of the format if it holds trials.
    """
    if source["unconfirmed"] and not source["frozen"]:
        raise click.UsageError("--unconfirmed is for lock files: add --frozen, or leave it out")
    if of_trials:
        for name, option in {"regret": "--portfolio", "origin": "--from", "plot": "--plot"}.items():
            if source[name] is not None:
                raise click.UsageError(f"{option} is for records, and {of_trials} holds trials")
    elif source["regret"] is None:
        for name, option in export_portfolio.OPTIONS.items():
            if source[name]:
                raise click.UsageError(f"{option} is for portfolios: add --portfolio 2%")
    elif source["origin"] is not None:
        raise click.UsageError("--portfolio takes trials from journals: give --journal, not --from")


def _portfolio(selection: Selection, source: Mapping[str, Any]) -> Found | None:
    """The portfolio that is asked for; None if none is."""
    if source["regret"] is None:
        return None
    if source["plot"] is not None:
        files.require_place(source["plot"])
    wanted = (source["regret"], source["journals"], source["names"])
    return export_portfolio.found(selection, *wanted)


def _report(found: Found, plot: Path | None, to_stdout: bool, as_json: bool) -> None:
    """Prints the portfolio, on standard error where the export itself is on standard output."""
    if not as_json:
        reports.show(found, text.console(stderr=to_stdout))
    if plot is not None:
        from tunefa.experiments import figure

        figure.save_png(lambda canvas: reports.plot(found, canvas), plot)
        click.echo(f"plot  {plot}", err=True)


def _format_name(destination: str, name: str | None, frozen: bool) -> str:
    format_name = name or ("yaml" if destination == "-" else exports.for_path(destination))
    if frozen and format_name != "yaml":
        raise click.UsageError("--frozen writes YAML: name DEST *.yaml, and leave out --format")
    if destination != "-":
        exports.check_suffix(destination, format_name)
    return format_name


def _chosen(selection: Selection, format_name: str, source: Mapping[str, Any]) -> Sequence[Record]:
    """The records to write. Raises TunefaError when there are none."""
    origin, frozen = source["origin"], source["frozen"]
    home = store.default_store()
    holds = _holds(format_name)
    if origin is not None:
        known = files.read(origin)
    elif frozen:
        known = home.records()
    else:  # and the best ones that the format can write, where another kernel has better ones
        known = home.best()
        known += [record for record in home.best(holds) if record not in known]
    records = selection.among(known)
    if frozen:
        records = [record for record in records if record.device is not None]
    if not records:
        where = f"in {origin}" if origin is not None else "in the store"
        fits = "matches and was measured" if frozen else "matches"
        raise TunefaError(
            f"none of {text.plural(len(known), 'record')} {where} {fits}: list them with "
            "'tunefa show', or make one with 'tunefa search'"
        )
    return records


def _check_held(records: Sequence[Record], format_name: str) -> None:
    """Raises TunefaError if the format can write none of the records."""
    if not any(map(_holds(format_name), records)):
        raise TunefaError(
            f"{format_name} can write none of {text.plural(len(records), 'record')} that match, as "
            f"it does not hold the parameters of {records[0].kernel}: write yaml, json or python"
        )


def _holds(format_name: str) -> Callable[[Record], bool]:
    """Whether a format can write a record; other records are comments in the file."""
    return getattr(exports.get(format_name), "holds", lambda _: True)
