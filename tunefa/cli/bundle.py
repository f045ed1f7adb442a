"""`tunefa bundle`: one file with the configs and binaries of workloads, for machines without a
compiler."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from tunefa.cli import completion, files, targets, traced_workloads
from tunefa.cli.cleaned import cleaned
from tunefa.cli.exit_codes import NOTHING_VALID
from tunefa.cli.reports import text
from tunefa.cli.workers_option import workers_option
from tunefa.cli.workload_options import Selection, workloads_without_chip
from tunefa.errors import TunefaError
from tunefa.runtime import bundle_builder
from tunefa.runtime.bundle_builder import Progress
from tunefa.spec.arch import GpuArch
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import bundle_file, traced
from tunefa.store.bundle_file import BundleFile


@click.command()
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.option("--arch", "archs", multiple=True, metavar="NAME", shell_complete=completion.archs,
              help=("Chip family (sm90, for its default device) or device (h200); may be repeated. "
                    " [default: this machine's GPU, else sm90]"))  # fmt: skip
@traced_workloads.options
@workloads_without_chip
@click.option("--exact", is_flag=True, help=(
    "No binaries for other lengths than those of the workloads: a smaller file."))  # fmt: skip
@click.option("--licence", metavar="TEXT", help=(
    "The licence of what is in the bundle, such as Apache-2.0; it is kept with it."))  # fmt: skip
@click.option("--show", is_flag=True, help="Show what the bundle DEST holds, and write nothing.")
@workers_option("one per core")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    destination: Path, selection: Selection, show: bool, as_json: bool, **options: Any
) -> None:
    """Write the configs, binaries and records of workloads to the bundle DEST (app.tunefa).

    \b
    tunefa bundle app.tunefa --workloads workloads.yaml --arch h200
    tunefa bundle app.tunefa --seqlen 8192 --arch sm90 --arch sm80

    A program that calls tunefa.load("app.tunefa") runs these workloads, and other lengths and batch
    sizes of their kind, without compiling: it needs neither Triton nor NVRTC, and its first call
    takes milliseconds. Each workload gets the config that the runtime would choose on that chip
    with the records of this machine. Kernels of installed libraries are left out by name.

    The file is checked when it is loaded. It serves the tunefa whose kernels have the same source,
    and drivers of the compilers' CUDA version or newer. The exit status is 3 if nothing can be
    written.

    Needs no GPU.
    """
    if show:
        _show(BundleFile(destination), as_json)
        return
    files.require_place(destination)
    bundle_file.check_place(destination)
    workloads = _workloads(selection, options.pop("workloads"), options.pop("top"))
    chips = _chips(options.pop("archs"))
    with _progress() as progress:
        contents, images = bundle_builder.build(workloads, chips, progress=progress, **options)
    for each in contents.left_out:
        click.echo(cleaned(f"Left out: {each['what']}: {each['why']}"), err=True)
    if not contents.plans:
        click.echo("Nothing was written, as no workload can be in the bundle.", err=True)
        sys.exit(NOTHING_VALID)
    bundle_file.write(destination, contents, images)
    _show(BundleFile(destination), as_json)
    if not as_json:
        text.console().print(f'Next: in the program, tunefa.load("{destination}")', highlight=False)


def _chips(names: Sequence[str]) -> list[Target]:
    """The chips to compile for. Raises TunefaError for a name that is unknown, or no GPU's."""
    found = [targets.named(name, None)[0] for name in names] or [targets.choose(None, None).target]
    for target in found:
        if not isinstance(target.arch, GpuArch):
            raise TunefaError(f"a bundle has binaries for GPUs, and {target} is none")
    return list(dict.fromkeys(found))


def _workloads(selection: Selection, path: Path | None, top: int | None) -> list[Workload]:
    """The workloads of a file or of the options.

    Raises TunefaError for a file that cannot be read, and click.UsageError for options that do not
    go together.
    """
    if path is None:
        if top is not None:
            raise click.UsageError("--top is for --workloads: give a file that tunefa trace wrote")
        return selection.workloads
    if selection.texts or selection.fields or selection.models:
        raise click.UsageError("--workloads names the workloads: leave out the others")
    return traced.read(path).heaviest[:top]


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Shows on standard error how many configs were compiled, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    with click.progressbar(length=1, label="compiling", file=sys.stderr) as bar:

        def show(done: int, of: int) -> None:
            bar.length = of
            bar.update(done - bar.pos)

        yield show


def _show(file: BundleFile, as_json: bool) -> None:
    """Prints what a bundle holds."""
    size = file.path.stat().st_size
    data = {
        "path": str(file.path),
        "bytes": size,
        "sha256": file.digest,
        "chips": list(file.chips.values()),
        "provenance": file.provenance,
        "kernels": file.kernels,
        "plans": [plan.to_dict() for plan in file.plans],
        "binaries": len(file.binaries),
        "left_out": file.left_out,
    }
    if as_json:
        text.emit_json(data)
        return
    out = text.console()
    asked = [plan for plan in file.plans if not plan.beside]
    for plan in asked:
        out.print(f"{plan.workload} on {plan.device}", highlight=False, soft_wrap=True)
        out.print(f"    {plan.kernel}: {plan.why}", highlight=False, soft_wrap=True)
    out.print(
        f"{file.path}: {text.plural(len(asked), 'workload')}, "
        f"{text.plural(len(file.binaries), 'binary').replace('binarys', 'binaries')}, "
        f"{size / 2**20:.1f} MiB, for {', '.join(file.chips.values())}; "
        f"SHA-256 {file.digest[:16]}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
