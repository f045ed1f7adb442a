"""`tunefa import`: adds the records of files to this machine's store."""

from __future__ import annotations

from pathlib import Path

import click

from tunefa.cli import files
from tunefa.cli.reports import text
from tunefa.store import results as store


@click.command("import")
@click.argument(
    "paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(paths: tuple[Path, ...], as_json: bool) -> None:
    """Add the records of YAML or JSON files to this machine's store, where the runtime finds them.

    All files are read before the first record is added.

    Needs no GPU.
    """
    by_file = {path: files.read(path) for path in paths}
    home = store.default_store()
    known = home.records()
    rows = []
    for path, records in by_file.items():
        for record in records:
            home.add(record)
        new = sum(record not in known for record in records)
        rows.append({"path": str(path), "records": len(records), "new": new})
    if as_json:
        text.emit_json({"files": rows, "store": str(store.user_root())})
        return
    out = text.console()
    for row in rows:
        count = text.plural(int(str(row["records"])), "record")
        out.print(f"{row['path']}: {count}, {row['new']} of them new")
    out.print(f"Stored in {store.user_root()}", soft_wrap=True)
    text.print_command(out, "Next: see them", text.command("tunefa", "show"))
