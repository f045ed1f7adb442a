"""`tunefa verify`: times stored winners again, on the GPU of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from tunefa.cli import files, targets
from tunefa.cli.exit_codes import NOTHING_VALID
from tunefa.cli.reports import text
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.store import results as store
from tunefa.store.record import Record

if TYPE_CHECKING:
    from tunefa.search.verify import Verified


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path))
@click.option("--workers", type=click.IntRange(1), metavar="N",
              help="Number of processes that compile.  [default: one per config]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(paths: tuple[Path, ...], workers: int | None, as_json: bool) -> None:
    """Time stored winners again, after an upgrade of Triton, CUDA or the driver.

    The best records for this device, from the store or from FILEs, race in the mode that they were
    measured in, against the kernel's default and the runner-up that the record holds. If a record
    loses, the winner's record is stored in its place. If it still wins, but was made with other
    compilers or another kernel source, a new record of the same config is stored. The exit status
    is 3 if a record lost, does not run, or is wrong.

    Needs a GPU.
    """
    seen = targets.seen()
    if not seen:
        raise TunefaError("verify measures, and this machine has no GPU: run it on one that has")
    name, target = seen[0].name, targets.described(seen[0])
    known = [r for path in paths for r in files.read(path)] or store.default_store().best()
    records = [r for r in known if r.device == name and r.kernel in kernels.names()]
    if not records:
        raise TunefaError(
            f"none of {len(known)} records was measured on {name}: run tunefa search first"
        )
    _verify(records, target, workers, as_json)


def _verify(records: list[Record], target: Target, workers: int | None, as_json: bool) -> None:
    from tunefa.search.verify import Verified, verify

    home = store.default_store()
    out = text.console()
    done: list[Verified] = []
    for record in records:
        try:
            kernel = kernels.load(record.kernel)
        except TunefaError as error:  # the other kernels can still race
            found = Verified(record, "failed", str(error), [])
        else:
            found = verify(record, Case(kernel, record.workload, target), workers)
        done.append(found)
        if found.instead is not None:
            home.add(found.instead)
        if not as_json:
            _show(found, out)
    if as_json:
        text.emit_json({"verified": [_plain(found) for found in done]})
    if any(found.regressed for found in done):
        sys.exit(NOTHING_VALID)


def _show(found: Verified, out: Console) -> None:
    """Prints the result for one record: the finding, why, and which versions have changed."""
    out.print(f"{found.finding:<9} {found.record.workload} ({found.record.mode})")
    out.print(f"          {found.why}", style="dim")
    for change in found.drift:
        out.print(f"          {change}", style="dim")
    if found.instead is not None and found.finding == "swapped":
        out.print(f"          now: {text.config_text(found.instead.config)}")


def _plain(found: Verified) -> dict[str, Any]:
    return {
        "workload": str(found.record.workload),
        "mode": found.record.mode,
        "outcome": found.finding,
        "why": found.why,
        "drift": found.drift,
        "instead": found.instead.to_dict() if found.instead else None,
    }
