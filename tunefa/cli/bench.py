"""`tunefa bench`: comparisons with other libraries, and experiments about attention."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from tunefa.cli.bench_experiment import ALL, command_of
from tunefa.errors import unknown

COMPARE, PROFILE = "compare", "profile"
_OWN = {COMPARE: "tunefa.cli.bench_compare", PROFILE: "tunefa.cli.bench_profile"}
"""Commands with options of their own, and their modules. All others are experiments."""


class _Group(click.Group):
    """Finds the experiments in their folder. Options without a command are those of `compare`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys([*_OWN, *_experiments(), ALL]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            command: click.Command = import_module(_OWN[cmd_name]).command
            return command
        if cmd_name == ALL:
            return command_of(ALL, "Run all experiments, one after the other.")
        if cmd_name not in _experiments():
            return None
        from tunefa.experiments import experiment

        return command_of(cmd_name, experiment.load(cmd_name).question)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            raise click.UsageError(str(unknown("experiment", args[0], known)), ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            profiles = any(word.partition("=")[0] == "--profile" for word in args)
            args = [PROFILE if profiles else COMPARE, *args]
        return super().parse_args(ctx, args)


@click.group("bench", cls=_Group)
def command(**_: Any) -> None:
    """Compare tunefa with other libraries, and answer questions about attention.

    `tunefa bench --seqlen 8192` is `tunefa bench compare --seqlen 8192`; with --profile it is
    `tunefa bench profile`. An experiment measures on this machine's GPU; for a chip that --arch
    names it is modelled. With --json, a command prints one JSON document; with --from it shows an
    earlier one.

    Needs no GPU, but compare and most profiles do.
    """


def _experiments() -> list[str]:
    from tunefa.experiments import experiment

    return experiment.names()
