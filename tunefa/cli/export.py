"""`tunefa export`: writes the best records of the store, or of a file, in any format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tunefa.cli import completion, export_frozen, export_portfolio, files
from tunefa.cli.export_portfolio import Found
from tunefa.cli.reports import next_steps, text
from tunefa.cli.reports import portfolio as reports
from tunefa.cli.workload_options import Selection, record_options
from tunefa.errors import TunefaError
from tunefa.runtime.lock_file import VARIABLE
from tunefa.store import exports
from tunefa.store import results as store
from tunefa.store.record import Record


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

    Options for workload and chip select records: a record must match all of them.

    With --frozen, DEST (for example tunefa.lock.yaml) is a lock file for all ranks of a job. Use it
    by setting TUNEFA_FROZEN to its path, or by calling tunefa.load(DEST, frozen=True). Attention on
    the GPU then runs exactly the configs in the file. Any other workload, device, kernel source or
    version of Triton and NVRTC is an error; with --unconfirmed, another version is one only if a
    config does not compile. The exit status is 3 if no record is left to write.

    With --portfolio 2%, the records are not the best ones. They have the fewest configs that serve
    every workload of your journals, each at most 2 % slower than the fastest config that was
    measured for it. A lower bound says how few there could be. A config serves only workloads that
    it was measured for. Fewer configs mean fewer binaries to compile, to check and to load.

    Needs no GPU.
    """
    _check_usage(source)
    unconfirmed = source.pop("unconfirmed")
    to_stdout = destination == "-"
    if to_stdout and as_json and name != "json":
        raise click.UsageError("- prints the export itself: give --format json instead of --json")
    format_name = _format_name(destination, name, source["frozen"])
    written = exports.get(format_name)
    found = _portfolio(selection, source)
    if found is not None:
        _report(found, source["plot"], to_stdout, as_json)
    records = _chosen(selection, format_name, source) if found is None else found.records
    if source["frozen"]:
        records = export_frozen.locked(records, unconfirmed)
    content = written.dump(records)
    if to_stdout:
        click.echo(content, nl=False)
        return
    path = Path(destination)
    files.write(path, content, format_name)
    count = sum(map(_holds(format_name), records))
    if as_json:
        said = {"path": str(path), "format": format_name, "records": count}
        text.emit_json(said | ({"portfolio": reports.to_data(found)} if found else {}))
        return
    marked = export_frozen.marked(records)
    if count < len(records):
        marked += f"; {len(records) - count:,} cannot be written so, comments in the file name them"
    out = text.console()
    out.print(f"Wrote {text.plural(count, 'record')} as {format_name} to {path}{marked}.")
    _print_next(out, path, source["frozen"])


def _print_next(out: Console, path: Path, frozen: bool) -> None:
    """Prints the command that uses the file."""
    if frozen:
        line = text.command("env", f"{VARIABLE}={path.resolve()}", "python", "train.py")
        text.print_command(out, "Next: on every rank", line)
    elif next_steps.is_importable(path):
        line = text.command("tunefa", "import", str(path))
        text.print_command(out, "Next: on another machine", line)


def _check_usage(source: Mapping[str, Any]) -> None:
    """Raises click.UsageError for options that do not go together."""
    if source["unconfirmed"] and not source["frozen"]:
        raise click.UsageError("--unconfirmed is for lock files: add --frozen, or leave it out")
    if source["regret"] is None:
        for name, option in export_portfolio.OPTIONS.items():
            if source[name]:
                raise click.UsageError(f"{option} is for portfolios: add --portfolio 2%")
    elif source["origin"] is not None:
        raise click.UsageError("--portfolio takes trials from journals: give --journal, not --from")


def _portfolio(selection: Selection, source: Mapping[str, Any]) -> Found | None:
    """The portfolio that is asked for; None if none is."""
    if source["regret"] is None:
        return None
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
    if not any(map(holds, records)):
        raise TunefaError(
            f"{format_name} can write none of {text.plural(len(records), 'record')} that match, as "
            f"it does not hold the parameters of {records[0].kernel}: write yaml, json or python"
        )
    return records


def _holds(format_name: str) -> Callable[[Record], bool]:
    """Whether a format can write a record; other records are comments in the file."""
    return getattr(exports.get(format_name), "holds", lambda _: True)
