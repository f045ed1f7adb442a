"""The command line. Each command is a module of this package, loaded when it is used.

This module imports no library but click, so that `tunefa --help` is fast.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from tunefa._version import __version__
from tunefa.cli.cleaned import cleaned
from tunefa.cli.exit_codes import INTERRUPTED
from tunefa.errors import TunefaError, unknown

COMMANDS: Mapping[str, str] = {
    "search": "Find the fastest config for a workload; measure it if this machine has the GPU.",
    "sweep": "Find the fastest configs of many workloads, on all GPUs there are.",
    "export": "Write the store's best records to a file.",
    "bundle": "Write the configs and binaries of workloads to one file that needs no compiler.",
    "import": "Add records from files to this machine's store.",
    "show": "List the records of the store, or the configs that failed in searches.",
    "rm": "Remove records from this machine's store.",
    "prune": "Remove the records that nothing uses any more from this machine's store.",
    "verify": "Time stored winners again on the GPU of this machine, after an upgrade.",
    "learn": "Learn from measured trials how long configs take.",
    "space": "Show a kernel's search space, and how many configs its rules allow.",
    "explain": "Show what limits the speed of a config, with the arithmetic.",
    "trace": "Trace which attention workloads a program runs, for a search of them.",
    "integrate": "Let other programs run tunefa, with no line of them changed.",
    "ascend": "Install the compiler for Huawei's NPUs.",
    "bench": "Compare tunefa with other libraries, and answer questions about attention.",
    "report": "Write one HTML page of winners, searches, failures and experiments.",
    "doctor": "Check this machine's devices, compilers, stores and records.",
}
"""The help of each command, in the order of the help text. A command is a module of this package
with a function `command`; that of `import` is `import_`, because `import` is a keyword of
Python."""


class _Commands(click.Group):
    """Loads a command when it is used, and prints a user's mistake as one sentence."""

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
        if args[0] != "trace":  # which starts a program
            os.environ.pop("TUNEFA_ACTIVATE", None)  # other commands compare tunefa with PyTorch
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *args: Any, **settings: Any) -> Any:
        try:
            try:
                return super().main(*args, **settings)
            finally:
                if sys.stdout is not None:  # it is None where the shell has closed it
                    sys.stdout.flush()
        except OSError as error:
            if not _stdout_fails():
                raise
            if error.errno != errno.EPIPE:  # its reader has ended, and needs no message
                why = error.strerror
                click.echo(f"Error: cannot write to standard output: {why}", err=True)
            sys.exit(TunefaError.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _plain_warnings():
                return super().invoke(ctx)
        except TunefaError as error:
            click.echo(cleaned(f"Error: {error}"), err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


def _stdout_fails() -> bool:
    """Whether nothing more can be written to standard output, by an attempt.

    If so, what is left is dropped: Python would try again at the end and print a traceback.
    """
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Prints tunefa's warnings as sentences, without the line of code that they come from."""
    plain = warnings.showwarning

    def show(
        message: Any, category: type[Warning], filename: str, *rest: Any, **named: Any
    ) -> None:
        if category is UserWarning and "tunefa" in filename:
            click.echo(cleaned(f"Warning: {message}"), err=True)
        else:
            plain(message, category, filename, *rest, **named)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Only measuring needs a GPU. Without one, `search` compiles for the chip that --arch "
    "names and predicts times; `verify` and `bench compare` need a GPU; all others work without "
    "one. "
    "Exit status: 0 success, 1 an error that you can correct, 2 wrong usage, 3 nothing valid was "
    "found, 130 interrupted. "
    'The shell completes names after eval "$(_TUNEFA_COMPLETE=bash_source tunefa)" (zsh_source in '
    "zsh).",
)
@click.version_option(__version__, "--version", message="tunefa %(version)s")
def main() -> None:
    """Finds, records and serves the fastest attention kernel for a shape and a GPU.

    A workload is one attention problem: its shape, dtype and mask. A config is one choice of a
    kernel's parameters. A record is the best config of a workload on a chip; records are kept in
    the store of this machine.

    \b
    tunefa search --arch sm90 --seqlen 8192     without a GPU: compile and predict
    tunefa search --seqlen 8192                 measure on the GPU of this machine
    tunefa export best.yaml                     write the best records to a file
    """
