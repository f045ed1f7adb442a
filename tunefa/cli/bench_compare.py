"""`tunefa bench compare`: tunefa beside its peers, on the GPU of this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import TaskProgressColumn

from tunefa.cli import each_workload, files, targets
from tunefa.cli.exit_codes import NOTHING_VALID
from tunefa.cli.reports import text
from tunefa.cli.reports.bar import OnStderr
from tunefa.cli.workload_options import Selection, workload_options
from tunefa.errors import TunefaError, unknown
from tunefa.spec import kernel as kernels
from tunefa.spec.trial import MODES
from tunefa.spec.workload import Workload
from tunefa.spec.workload_parts import CACHE_OPS, TRAINING_OPS

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    from tunefa.experiments.document import Document
    from tunefa.measure.contest import Settings, Step


def _peer_names(context: click.Context, parameter: click.Parameter, given: str | None) -> list[str]:
    """The peers that a user names, separated by commas; all for None."""
    from tunefa.measure import peers

    if given is None:
        return peers.names()
    names = list(dict.fromkeys(each.strip() for each in given.split(",") if each.strip()))
    for name in names:
        if name not in peers.names():
            raise click.BadParameter(str(unknown("peer", name, peers.names())))
    return names


@click.command("compare")
@workload_options
@click.option("--peers", metavar="NAMES", callback=_peer_names, help=(
    "The peers, separated by commas, such as cudnn,fa4.  [default: all]"))  # fmt: skip
@click.option("--kernel", metavar="NAME",
              help="tunefa runs this kernel's default config, instead of its choice.")  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), default="graph", show_default=True,
              help="How calls are made while they are timed.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=21, show_default=True, metavar="N",
              help="Interleaved rounds of each workload.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the results as JSON here, after each workload.")  # fmt: skip
@click.option("--from", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="FILE", help="Show the results of an earlier run; needs no GPU.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, source: Path | None, as_json: bool, **asked: Any) -> None:
    """Compare tunefa with the attention libraries installed here.

    All run on the same tensors, in one process, in interleaved rounds with a cold L2, after their
    outputs were compared with fp64. Ceilings are measured in the same run: PyTorch's largest matrix
    product and copy. A peer that is absent, wrong, or fails is named with the reason.

    With --backward the gradients are compared: those of the libraries by autograd, of which only
    the backward pass is timed, and those of the best backward kernel of tunefa's own that is known,
    with its launches before and after the main one.

    Measures on the GPU of this machine; with --from it shows an earlier run, without a GPU. The
    exit status is 3 if tunefa itself has no row.
    """
    from tunefa.cli.reports import experiment as reports
    from tunefa.experiments import comparison
    from tunefa.experiments.document import Document

    if source is not None:
        document = Document.load(source)
        comparison.check(document, str(source))
    else:
        document = _measure(selection, **asked)
    if as_json:
        text.emit_json(document.to_data())
    else:
        reports.show_comparison(document, text.console())
    if not all("tunefa" in row["scores"] for row in document.rows):
        sys.exit(NOTHING_VALID)


def _measure(
    selection: Selection, peers: list[str], kernel: str | None, out: Path | None, **asked: Any
) -> Document:
    """Measures every workload, and writes the results after each."""
    from tunefa.experiments import compare
    from tunefa.measure.contest import Settings

    if out is not None:
        _check_out(out)
    parts = _measurable(selection, kernel)
    settings = Settings(mode=asked["mode"], rounds=asked["rounds"])
    there, absent = compare.present(peers)
    rows: list[dict[str, Any]] = []
    with compare.Comparisons(settings, kernel) as comparisons:
        for place, part in enumerate(parts):
            each_workload.announce(parts, place)
            with _Steps(part.workload) as steps:
                rows.append(comparisons.row(part.workload, there, steps))
            document = _document(selection, settings, rows, absent)
            if out is not None:
                document.save(out)
    if out is not None:
        click.echo(f"results  {out}", err=True)
    return document


def _check_out(path: Path) -> None:
    """Raises TunefaError if the results cannot be written to `path`, or would replace another
    file."""
    from tunefa.experiments.document import Document

    files.require_place(path)
    if path.exists() and path.stat().st_size:
        try:
            Document.load(path)
        except TunefaError as error:
            raise TunefaError(f"{error}; not overwritten: move it away first") from None


def _measurable(selection: Selection, kernel: str | None) -> list[Selection]:
    """The workloads. Raises TunefaError where nothing can be measured."""
    if kernel is not None and kernel not in kernels.names():
        raise unknown("kernel", kernel, kernels.names())
    for workload in selection.workloads:
        if workload.op in CACHE_OPS:
            raise TunefaError(
                f"{workload} is attention over a cache, which is not compared here: in a checkout, "
                f"`python -m benchmarks.{workload.op}` compares it with other libraries"
            )
        if workload.op not in TRAINING_OPS:
            raise TunefaError(
                f"{workload} is no attention, which is what is compared here: "
                f"`tunefa bench {workload.op} -w {workload}` compares it with cuBLAS"
            )
    if not targets.seen():
        raise TunefaError(
            "this machine has no GPU, and a comparison measures: run it on a machine with one and "
            "--out FILE, and show that file here with --from FILE"
        )
    if not selection.present:
        raise TunefaError(f"{selection.target} is not this machine's GPU: leave out --arch")
    parts = selection.each()
    files.require_current_folder()
    for part in parts:
        selection.target.check_memory(part.workload)
    return parts


def _document(
    selection: Selection, settings: Settings, rows: list[dict[str, Any]], absent: dict[str, str]
) -> Document:
    from tunefa.experiments import compare, run
    from tunefa.experiments.document import MEASURED, Document
    from tunefa.measure import peers

    return Document(
        experiment=compare.NAME,
        source=MEASURED,
        arch=selection.target.arch.name,
        device=selection.target.device.name,
        rows=rows,
        made_with={**run.made_with(), **compare.versions(peers.names())},
        settings={**asdict(settings), "absent": absent},
    )


class _Steps(OnStderr):
    """Shows which step of a contest is in progress. A context manager."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(str(workload), None, TaskProgressColumn())
        self._stage = ""

    def __call__(self, step: Step) -> None:
        """Shows that a step begins."""
        words = f"checking {step.contestant}" if step.stage == "check" else "timing all"
        self._bar.update(self._task, total=step.total, completed=step.done, description=words)
        if not self._console.is_terminal and words != self._stage:
            self._console.print(words, soft_wrap=True)
        self._stage = words
