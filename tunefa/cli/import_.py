"""`tunefa import`: adds the records of files to this machine's store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tunefa.cli import files
from tunefa.cli.cleaned import cleaned
from tunefa.cli.reports import text
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.store import results as store
from tunefa.store.record import Record


@click.command("import")
@click.argument(
    "paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(paths: tuple[Path, ...], as_json: bool) -> None:
    """Add the records of YAML or JSON files to this machine's store, where the runtime finds them.

    All files are read before the first record is added. A record whose config the kernel's search
    space refuses is left out, and the rule is named; kernels of other versions refuse nothing.

    Needs no GPU.
    """
    by_file = {path: files.read(path) for path in paths}
    home = store.default_store()
    known = home.records()
    rows: list[dict[str, Any]] = []
    for path, records in by_file.items():
        refused = [_refused(record, path) for record in records]
        kept = [each for each, why in zip(records, refused, strict=True) if why is None]
        for record in kept:
            home.add(record)
        new = sum(record not in known for record in kept)
        reasons = [why for why in refused if why is not None]
        rows.append({"path": str(path), "records": len(kept), "new": new, "refused": reasons})
    reasons = [why for row in rows for why in row["refused"]]
    if reasons and not any(row["records"] for row in rows):
        raise TunefaError(f"no record was added: {reasons[0]}")
    for why in reasons:
        click.echo(cleaned(f"Left out: {why}"), err=True)
    if as_json:
        text.emit_json({"files": rows, "store": str(store.user_root())})
        return
    out = text.console()
    for row in rows:
        count = text.plural(row["records"], "record")
        out.print(f"{row['path']}: {count}, {row['new']} of them new")
    out.print(f"Stored in {store.user_root()}", soft_wrap=True)
    text.print_command(out, "Next: see them", text.command("tunefa", "show"))


def _refused(record: Record, path: Path) -> str | None:
    """The reason, in words, that the kernels here cannot use a record; None if they can."""
    if record.kernel not in kernels.names():
        return None
    try:
        kernel, arch = kernels.load(record.kernel), archs.load(record.arch)
    except TunefaError:  # it cannot be judged, and does no harm
        return None
    if record.source_hash != kernel.source_hash and kernel.space.misfit(record.config):
        return None  # it has the parameters of another version of the kernel
    why = kernel.why_not(record.workload, arch)
    if why is None and (rule := kernel.refusal(record.config, record.workload, arch)):
        why = f"the space refuses its config ({text.config_text(record.config)}): {rule}"
    return f"{path}: {record.kernel} for {record.workload} on {record.arch}: {why}" if why else None
