"""`tunefa export`: the store's best records, or a file's, in any format."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tunefa import exports, store
from tunefa.cli import files
from tunefa.cli.workload_options import Selection, record_options
from tunefa.errors import TunefaError
from tunefa.record import Record
from tunefa.reports import text


@click.command()
@click.argument("destination", metavar="DEST")
@click.option("--format", "name", metavar="NAME", help=(
    f"{', '.join(exports.names())}.  [default: by DEST's suffix; yaml for -]"))  # fmt: skip
@record_options
@click.option("--from", "origin", metavar="FILE", type=click.Path(path_type=Path),
              help="Take the records of a YAML or JSON file instead of the store's.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Say what was written as one JSON document.")
def command(
    destination: str,
    name: str | None,
    selection: Selection,
    origin: Path | None,
    as_json: bool,
) -> None:
    """Write the best record of each workload and chip to the file DEST, or to standard output
    where DEST is -.

    Options for workload and chip narrow them: records must have everything that is given.

    Needs no GPU.
    """
    to_stdout = destination == "-"
    if to_stdout and as_json and name != "json":
        raise click.UsageError("- prints the export itself: write --format json instead of --json")
    format_name = name or ("yaml" if to_stdout else exports.for_path(destination))
    written = exports.get(format_name)
    records = _chosen(selection, origin)
    content = written.dump(records)
    if to_stdout:
        sys.stdout.write(content)
        return
    path = Path(destination)
    files.write(path, content, format_name)
    if as_json:
        text.emit_json({"path": str(path), "format": format_name, "records": len(records)})
        return
    out = text.console()
    out.print(f"Wrote {text.plural(len(records), 'record')} as {format_name} to {path}.")
    if hasattr(written, "load"):
        text.print_command(
            out, "Next: on another machine", text.command("tunefa", "import", str(path))
        )


def _chosen(selection: Selection, origin: Path | None) -> Sequence[Record]:
    """The records to write. Raises TunefaError when there are none."""
    known = files.read(origin) if origin is not None else store.default_store().best()
    records = selection.among(known)
    if not records:
        where = f"in {origin}" if origin is not None else "in the store"
        raise TunefaError(
            f"none of {text.plural(len(known), 'record')} {where} fits: look with 'tunefa show', "
            "search with 'tunefa search'"
        )
    return records
