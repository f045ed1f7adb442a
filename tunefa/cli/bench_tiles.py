"""`tunefa bench tiles`: how much of an NPU's memories square tiles need."""

from __future__ import annotations

from pathlib import Path

import click

from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection, npu_options
from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.arch_catalog import npu
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload, parse_size

_KERNEL = "attention_fwd_ascend"


@click.command("tiles")
@npu_options
@click.option(
    "--seqlen",
    default="8192",
    show_default=True,
    metavar="N",
    help="Number of query rows, and of keys.",
)
@click.option("--plot", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="File of the plot.  [default: tiles-ARCH.png]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, without a plot.")
def command(selection: Selection, seqlen: str, path: Path | None, as_json: bool) -> None:
    """Compare an often published formula for square tiles with Huawei's compiler.

    The table shows how much of each memory of an NPU the tiles 64 x 64 to 512 x 512 need at
    head_dim 64, by the formula and by the compiler.

    Needs no GPU and no NPU. Run `tunefa ascend setup` first; the plot needs matplotlib.
    """
    if selection.arch is None and selection.device is None:
        raise click.UsageError("no NPU is named: name one, such as --arch ascend910b3")
    arch = npu(selection.target.arch)
    length = parse_size(seqlen, "--seqlen")
    workload = Workload.of(seqlen_q=length, head_dim=64, dtype="fp16", causal=False)
    kernel = kernels.load(_KERNEL)
    if why := languages.without_compiler([kernel], arch).get(kernel.name):
        raise TunefaError(why)
    from tunefa.cli.reports import tiles as reports
    from tunefa.measure import square_tiles as tables

    with text.console(stderr=True).status("Compiling four tiles (seconds)"):
        found = tables.table(Case(kernel, workload, selection.target))
    if as_json:
        rows = [tile.to_data() for tile in found]
        text.emit_json({"workload": str(workload), "arch": arch.name, "tiles": rows})
        return
    out = text.console()
    reports.show(found, workload, arch, out)
    path = path or Path(f"tiles-{arch.name}.png")
    try:
        reports.plot(found, workload, arch, path)
        out.print(f"plot  {path}", soft_wrap=True)
    except ImportError:
        out.print("No plot: it needs matplotlib: pip install 'matplotlib>=3.8'")
    except OSError as error:
        raise TunefaError(
            f"cannot write {path}: {error.strerror}: name another file with --plot"
        ) from error
    words = (*selection.chip_words, "--seqlen", seqlen, "--head-dim", "64", "--full")
    line = text.command("tunefa", "search", *words)
    text.print_command(out, "Next: find the best tile", line)
