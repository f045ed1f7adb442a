"""Completion by the shell after `--arch`, `--device`, `--model`, `--dtype` and `--format`.

`eval "$(_TUNEFA_COMPLETE=bash_source tunefa)"` switches it on, in zsh and fish with `zsh_source`
and `fish_source`.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from tunefa.spec import arch_catalog, dtype_names
from tunefa.spec import model_preset as model_presets
from tunefa.spec.workload import DTYPES
from tunefa.store import exports


def archs(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The archs and devices whose names begin with what was typed."""
    return _beginning(incomplete, [*arch_catalog.names(), *arch_catalog.device_names()])


def devices(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The devices whose names begin with what was typed."""
    return _beginning(incomplete, arch_catalog.device_names())


def models(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The models whose names begin with what was typed; a file if that can be no name."""
    found = _beginning(incomplete, model_presets.names())
    return found or [CompletionItem(incomplete, type="file")]


def dtypes(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The dtypes whose names begin with what was typed."""
    return _beginning(incomplete, [*DTYPES, *dtype_names.OTHER_NAMES])


def formats(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The formats of exports whose names begin with what was typed."""
    return _beginning(incomplete, exports.names())


def _beginning(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    """The names that begin so. One with a space is left out: shells would make it two words."""
    typed = incomplete.lower()
    found = (name for name in dict.fromkeys(names) if name.startswith(typed))
    return [CompletionItem(name) for name in found if " " not in name]
