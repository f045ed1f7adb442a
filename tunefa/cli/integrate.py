"""`tunefa integrate`: lets other programs run tunefa with no line of them changed."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tunefa.cli.reports import text
from tunefa.integrations import local_kernels


@click.group("integrate")
def command() -> None:
    """Let other programs run tunefa, with no line of them changed.

    Needs no GPU. With --json, a command prints one JSON document.
    """


@command.command("transformers")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def transformers(folder: Path, as_json: bool) -> None:
    """Write FOLDER, and print the environment variable with which it replaces flash-attn.

    Programs whose models say attn_implementation="flash_attention_2" then run tunefa, where
    flash-attn itself is not installed. They need Hugging Face's package `kernels`.

    Needs no GPU.
    """
    assignment = local_kernels.write(folder)
    if as_json:
        name, _, value = assignment.partition("=")
        text.emit_json({"folder": str(folder.expanduser().absolute()), name: value})
        return
    click.echo(f"export {shlex.quote(assignment)}")
