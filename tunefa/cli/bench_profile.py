"""`tunefa bench profile`: one call under a profiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from tunefa.cli.reports import experiment as reports
from tunefa.cli.reports import text
from tunefa.cli.workload_options import Selection, workload_options
from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.experiments.profiles import Profile

TOOLS = ("proton", "torch", "ncu")


@click.command("profile")
@workload_options
@click.option("--with", "--profile", "tool", type=click.Choice(TOOLS), default="torch",
              show_default=True,
              help="Triton's Proton, PyTorch's profiler, or Nsight Compute.")  # fmt: skip
@click.option("--peers", metavar="NAMES", default="", help=(
    "Attention of other libraries to profile as well, separated by commas, such as "
    "operators,sdpa."))  # fmt: skip
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              default=Path("profile"), show_default=True,
              help="Folder of the profiler's files.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, tool: str, peers: str, folder: Path, as_json: bool) -> None:
    """Profile one call of tunefa: which kernels it runs, and what limits them.

    `tunefa bench --profile ncu` is `tunefa bench profile --with ncu`. The call is warmed up, and
    made once in a range with tunefa's name. torch writes a trace for Perfetto, proton a hatchet
    file, and ncu a report of Nsight Compute with the ten figures that matter to attention.

    torch also profiles the CPU, where there is no GPU. The others need a GPU, and ncu needs the
    right to read its counters.
    """
    if (selection.arch or selection.device) and not selection.present:
        raise TunefaError(
            f"{selection.target} is not in this machine, and a profile needs the chip itself: "
            "leave out --arch and --device"
        )
    for workload in selection.workloads:
        if workload.op != "fwd":
            raise TunefaError(f"{workload} is of the op {workload.op}: forward passes are profiled")
    names = list(dict.fromkeys(name.strip() for name in peers.split(",") if name.strip()))
    profiles = profiled(tool, selection.workloads, names, folder)
    if as_json:
        text.emit_json({"profiles": [profile.to_data() for profile in profiles]})
        return
    show(profiles, text.console())


def profiled(
    tool: str, workloads: Sequence[Workload], peers: Sequence[str], folder: Path
) -> list[Profile]:
    """Profiles tunefa and peers on each workload; the files are named on standard error."""
    from tunefa.experiments import profiles

    found = []
    for workload in workloads:
        click.echo(f"profile: {workload} by {tool}", err=True)
        made = profiles.profile(tool, workload, ("tunefa", *peers), folder)
        for path in made.files:
            click.echo(f"profile  {path}", err=True)
        found.append(made)
    return found


def show(profiles: Sequence[Profile], out: Console) -> None:
    """Prints the tables of profiles, and how their files are looked at."""
    for profile in profiles:
        for table in profile.tables:
            reports.print_table(table, out)
        out.print(profile.open_with, soft_wrap=True)
