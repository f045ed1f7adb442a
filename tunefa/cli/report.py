"""`tunefa report`: writes one HTML page of the store, the journals and results of experiments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click

from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection, chip_filter_options
from tunefa.errors import TunefaError
from tunefa.report import page
from tunefa.report.content import Content
from tunefa.report.gather import gather
from tunefa.spec.workload import Workload
from tunefa.store import results


@dataclass(frozen=True)
class _Place:
    """A chip, as a `Selection` compares it; the workload is not asked for."""

    arch: str
    device: str | None
    workload: Workload


@click.command()
@chip_filter_options
@click.option("--out", "path", metavar="FILE", default="report.html", show_default=True,
              type=click.Path(dir_okay=False, path_type=Path),
              help="Write the page here.")  # fmt: skip
@click.option("--experiments", "folder", metavar="DIR",
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Show the results of experiments in this folder, as `tunefa bench --out` writes "
              "them.")  # fmt: skip
@click.option("--from", "source", metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Make the page of this JSON file, which --json has printed, not of what is on "
              "this machine.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Write no page, but print its whole content as one JSON document.")  # fmt: skip
def command(
    selection: Selection, path: Path, folder: Path | None, source: Path | None, as_json: bool
) -> None:
    """Write one HTML page of winners, searches, failures and experiments.

    The page needs no network: it shows the winners and their certificates, how each search
    converged, heat maps of times, rooflines, and why configs failed. With --experiments it shows
    their questions, plots and tables, too. It can be read on a phone and printed.

    Needs no GPU.
    """
    if source is not None and folder is not None:
        raise click.UsageError("--from has the experiments of its page: leave out --experiments")
    if not as_json:
        page.require_libraries()
        _require_folder(path)

    def keeps(arch: str, device: str | None) -> bool:
        return selection.selects(_Place(arch, device, Workload.of(seqlen_q=1)))

    content = Content.load(source).only(keeps) if source else gather(folder, keeps)
    if as_json:
        text.emit_json(content.to_data())
        return
    html = page.render(content)
    results.write_text(path, html)
    click.echo(f"{path} ({text.kib(len(html.encode('utf-8')))} KiB)")


def _require_folder(path: Path) -> None:
    """Raises TunefaError if the folder of a file cannot be written."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise TunefaError(f"cannot write {path}: the folder {folder} does not exist: create it")
    if not os.access(folder, os.W_OK):
        raise TunefaError(
            f"cannot write {path}: the folder {folder} is not writable: choose another --out"
        )
