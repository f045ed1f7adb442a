"""The option --workers: how many processes compile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

MOST_PER_CORE = 8
"""Compilers that wait for a disk or a network leave their core to others, but not to many."""


def workers_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns the decorator that adds `--workers`. `default` says in the help what its default
    is."""
    return click.option(
        "--workers",
        type=click.IntRange(1),
        metavar="N",
        callback=_limited,
        help=f"Number of processes that compile, up to {MOST_PER_CORE} per core.  "
        f"[default: {default}]",
    )


def _limited(context: click.Context, parameter: click.Parameter, count: int | None) -> int | None:
    """Refuses so many processes that the machine would do nothing but start them."""
    cores = os.cpu_count() or 1
    most = MOST_PER_CORE * cores
    if count is not None and count > most:
        plural = "" if cores == 1 else "s"
        raise click.BadParameter(
            f"{count:,} processes are too many for {cores} core{plural}: give at most {most}"
        )
    return count
