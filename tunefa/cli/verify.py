"""`tunefa verify`: times stored winners again, on the GPU of this machine."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from tunefa.cli import files, targets
from tunefa.cli.exit_codes import NOTHING_VALID
from tunefa.cli.reports import text
from tunefa.errors import TunefaError
from tunefa.search.budget import Budget
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.store import results as store
from tunefa.store.record import Record

if TYPE_CHECKING:
    from tunefa.search.verify import Verified


_STORED = {
    "kept": "confirmed with these compilers",
    "failed": "no longer serves with these compilers",
}
"""The remark on a record that was stored anew, by the finding."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path))
@click.option("--budget", metavar="B", help=(
    "Time for all races (60s, 2m), or number of records (20). The records most in doubt come "
    "first, and those that are left out are listed.  [default: all records]"))  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N",
              help="Processes that compile.  [default: one per core but two]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    paths: tuple[Path, ...], budget: str | None, workers: int | None, as_json: bool
) -> None:
    """Time stored winners again, after an upgrade of Triton, CUDA or the driver.

    The best records for this device, from the store or from FILEs, race in the mode that they were
    measured in, against the kernel's default and the runner-up that the record holds. Records come
    first whose kernel's source or compilers changed, then those with the smallest lead. If a record
    loses, the winner's record is stored in its place. If it still wins, but was made with other
    compilers or another kernel source, a new record of the same config is stored: it is confirmed.
    A record that does not compile, crashes or is wrong no longer serves with these compilers. The
    exit status is 3 if a record lost, does not run, or is wrong.

    Needs a GPU.
    """
    files.require_current_folder()
    limit = Budget() if budget is None else Budget.parse(budget)
    seen = targets.seen()
    if not seen:
        raise TunefaError("verify measures, and this machine has no GPU: run it on one that has")
    target = targets.described(seen[0])
    name = target.device.name
    known = [r for path in paths for r in files.read(path)] or store.default_store().best()
    records = [r for r in known if r.device == name and r.kernel in kernels.names()]
    if not records:
        raise TunefaError(
            f"none of {len(known)} records was measured on {name}: run tunefa search first"
        )
    done, left_out = _verify(records, target, limit, workers, None if as_json else text.console())
    if as_json:
        said = {"verified": list(map(_plain, done)), "left_out": list(map(_name, left_out))}
        text.emit_json(said)
    if any(found.regressed for found in done):
        sys.exit(NOTHING_VALID)


def _verify(
    records: list[Record], target: Target, limit: Budget, workers: int | None, out: Console | None
) -> tuple[list[Verified], list[Record]]:
    """Verifies records and stores what replaces them; prints each finding if `out` is not None.

    Returns the findings, and the records that the budget left out.
    """
    from tunefa.search import verify

    home = store.default_store()
    done: list[Verified] = []
    for found in verify.verify(records, target, limit, workers):
        done.append(found)
        if found.instead is not None:
            home.add(found.instead)
        if out is not None:
            _show(found, out)
    verified = {id(found.record) for found in done}
    left_out = [each for each in verify.most_in_doubt(records) if id(each) not in verified]
    if out is not None:
        _show_summary(done, left_out, limit.elapsed_s, out)
    return done, left_out


def _show_summary(
    done: list[Verified], left_out: list[Record], seconds: float, out: Console
) -> None:
    """Prints how many records were verified, how they fared, and which were left out."""
    counts = Counter(found.finding for found in done).most_common()
    fared = ", ".join(f"{count} {finding}" for finding, count in counts)
    total = len(done) + len(left_out)
    out.print(f"{len(done)} of {total} records verified in {seconds:.0f} s: {fared or 'none'}")
    if left_out:
        out.print(f"the budget left out {len(left_out)}, whose records stay as they are:")
    for record in left_out:
        out.print(f"          {record.workload} ({record.mode})", style="dim")


def _name(record: Record) -> dict[str, Any]:
    return {"workload": str(record.workload), "kernel": record.kernel, "mode": record.mode}


def _show(found: Verified, out: Console) -> None:
    """Prints the result for one record: the finding, why, and which versions have changed."""
    out.print(f"{found.finding:<9} {found.record.workload} ({found.record.mode})")
    out.print(f"          {found.why}", style="dim")
    for change in found.drift:
        out.print(f"          {change}", style="dim")
    if found.instead is not None and found.finding in _STORED:
        out.print(f"          {_STORED[found.finding]}", style="dim")
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
