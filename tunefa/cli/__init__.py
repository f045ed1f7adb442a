"""The command line: one file per command, loaded when it is used.

The group itself imports click and nothing else, so that `tunefa --help` is there at once.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from tunefa._version import __version__
from tunefa.cli.exit_codes import INTERRUPTED
from tunefa.errors import TunefaError, unknown

COMMANDS: Mapping[str, str] = {
    "search": "Find the fastest config for a workload; measures where there is a GPU.",
    "export": "Write the store's best records to a file.",
    "import": "Add records from files to this machine's store.",
    "show": "List the records of the store, or what failed in searches.",
    "verify": "Re-time stored winners on the GPU of this machine, after an upgrade.",
    "space": "Count what the rules leave of a kernel's search space.",
    "explain": "Show with its arithmetic what limits a config.",
    "ascend": "Set up the compiler for Huawei's NPUs.",
    "bench": "Compare what is published of tiles with what the compiler says.",
    "doctor": "Check devices, toolchain, stores and records.",
}
"""Help by command, in the order of the help text. Each is a module of this package with a function
`command`; `import` is `import_`, for Python keeps the word."""


class _Commands(click.Group):
    """Loads a command when it is asked for, and says what a user did wrong in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__name__}.{'import_' if cmd_name == 'import' else cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(str(unknown("command", args[0], COMMANDS)), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _warnings_in_words():
                return super().invoke(ctx)
        except TunefaError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


@contextlib.contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Prints warnings of the store as sentences, without the line of code that gave them."""
    plain = warnings.showwarning

    def show(
        message: Any, category: type[Warning], filename: str, *rest: Any, **named: Any
    ) -> None:
        if category is UserWarning and "tunefa" in filename:
            click.echo(f"Warning: {message}", err=True)
        else:
            plain(message, category, filename, *rest, **named)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Only measuring needs a GPU: without one, `search` compiles for --arch and predicts; "
    "every other command works as it is. Exit status: 0 fine, 1 a mistake to mend, 2 wrong usage, "
    "3 ran but found nothing valid, 130 interrupted.",
)
@click.version_option(__version__, "--version", message="tunefa %(version)s")
def main() -> None:
    """Finds, records and serves the fastest attention kernel for a shape and a GPU.

    \b
    tunefa search --arch sm90 --seqlen 8192     no GPU needed: compiles, predicts
    tunefa search --seqlen 8192                 measures on the GPU of this machine
    tunefa export best.yaml                     the best records as one file
    """
