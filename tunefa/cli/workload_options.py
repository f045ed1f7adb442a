"""The options that name a workload and a chip: the same words for every command.

A command that works on one workload asks the selection for its `workload` and `target`; one that
lists records asks which `among` them it chooses; an option that was not given chooses all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import click

from tunefa.cli import targets
from tunefa.cli.targets import ChosenTarget
from tunefa.spec import model_preset as model_presets
from tunefa.spec.target import Target
from tunefa.spec.workload import DTYPES, Workload, parse_size
from tunefa.store.record import Record


class Placed(Protocol):
    """What is of one workload and one chip: a record, a failure."""

    @property
    def workload(self) -> Workload: ...

    @property
    def arch(self) -> str: ...

    @property
    def device(self) -> str | None: ...


@dataclass(frozen=True)
class Selection:
    """What a user said about the workload and the chip."""

    text: str | None = None
    """`-w`."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Workload that were given one by one, `--model`'s included."""
    arch: str | None = None
    device: str | None = None
    last: bool = False
    """Of the records that it chooses, only the newest."""

    @property
    def workload(self) -> Workload:
        """The workload, what is left out by its defaults. Raises TunefaError if it is not valid."""
        if self.text is not None:
            return Workload.parse(self.text)
        if "seqlen_q" not in self.fields:
            raise click.UsageError(
                "no workload: give --seqlen (query rows, such as --seqlen 8192) or -w WORKLOAD"
            )
        return Workload.of(**self.fields)

    @functools.cached_property
    def _chosen(self) -> ChosenTarget:
        return targets.choose(self.arch, self.device)

    @property
    def target(self) -> Target:
        """The chip; see `targets.choose`."""
        return self._chosen.target

    @property
    def present(self) -> bool:
        """Whether the target's device is the one of this machine."""
        return self._chosen.present

    @property
    def chip_words(self) -> list[str]:
        """The options that name this chip again, for a command line to copy."""
        words = ["--arch", self.target.arch.name if self.arch is None else self.arch]
        return [*words, "--device", self.device] if self.device is not None else words

    def among(self, records: Sequence[Record]) -> list[Record]:
        """The records that it chooses, in their order. Raises TunefaError for unknown names."""
        chosen = [record for record in records if self.chooses(record)]
        if self.last and chosen:
            return [min(chosen, key=lambda record: record.rank[-1])]
        return chosen

    def chooses(self, record: Placed) -> bool:
        """Whether a record, or a failure, has everything that was given.

        Raises TunefaError for unknown names.
        """
        return self.misfit(record) is None

    def misfit(self, placed: Placed) -> str | None:
        """The first option that was given and says otherwise; None if all hold.

        Raises TunefaError for unknown names.
        """
        if self.text is not None and placed.workload != Workload.parse(self.text):
            return f"-w {self.text}"
        fields = dict(self.fields)
        if "seqlen_q" in fields:
            fields.setdefault("seqlen_k", fields["seqlen_q"])
        for name, value in fields.items():
            if getattr(placed.workload, name) != value:
                return _words(name if name in self.fields else "seqlen_q", value)
        if not self._chip_chooses(placed):
            chip = {"--arch": self.arch, "--device": self.device}
            return " ".join(f"{flag} {value}" for flag, value in chip.items() if value is not None)
        return None

    def _chip_chooses(self, record: Placed) -> bool:
        if self.arch is None and self.device is None:
            return True
        target, is_named = targets.named(self.arch, self.device)
        if record.arch != target.arch.name:
            return False
        return not is_named or targets.same(record.device, target.device)


def _size(ctx: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """The number behind an option: `8192` or `8k`. A window counts the query's own key, and the
    field that it gives does not."""
    if value is None:
        return None
    size = parse_size(value, option.opts[0])
    return size - 1 if option.name == "window_left" else size


_SIZE_OPTIONS = {
    "batch": ("--batch", "Sequences at a time.  [default: 1]"),
    "heads": ("--heads", "Query heads; given alone, also the KV heads.  [default: 32]"),
    "heads_kv": ("--kv-heads", "Key and value heads.  [default: 8]"),
    "seqlen_q": ("--seqlen", "Query rows, such as 8192 or 8k; given alone, also the keys."),
    "seqlen_k": ("--seqlen-k", "Keys, where they are not as many as query rows."),
    "head_dim": ("--head-dim", "Elements of one head, 16 to 256.  [default: 128]"),
    "window_left": (
        "--window",
        "Keys back from the diagonal that a query sees, the one on it included.  [default: all]",
    ),
    "window_right": (
        "--window-right",
        "Keys beyond the diagonal that a query sees; not causal then.",
    ),
}


SELECTING = (
    *("arch", "device", "model", *_SIZE_OPTIONS, "dtype", "causal", "softcap", "varlen", "text"),
)
"""The parameters that make a selection, by the names that click has for them."""

_CHIP_OPTIONS = (
    click.option("--arch", metavar="NAME", help=(
        "Chip family (sm90) or device (h200).  [default: this machine's GPU, else sm90]")),
    click.option("--device", metavar="NAME", help="Device of the arch, such as h200."),
)  # fmt: skip

_WORKLOAD_OPTIONS = (
    click.option("--model", metavar="NAME", help=(
        "Heads and head_dim of a model, such as llama3-8b.")),
    *(
        click.option(flag, name, callback=_size, metavar="N", help=text)
        for name, (flag, text) in _SIZE_OPTIONS.items()
    ),
    click.option("--dtype", metavar="NAME", help=f"{', '.join(DTYPES)}.  [default: bf16]"),
    click.option("--causal/--full", "causal", default=None, help=(
        "Mask, aligned to the bottom right, or none.  [default: causal]")),
    click.option("--softcap", is_flag=True, default=None, help=(
        "Scores are bounded by a tanh, as in Gemma 2.")),
    click.option("--varlen", is_flag=True, default=None, help=(
        "Packed sequences of many lengths; --seqlen is the longest.")),
    click.option("-w", "--workload", "text", metavar="WORKLOAD", help=(
        "All of it as one word, such as b4_h32_kv8_q4096_d128_bf16_causal.")),
)  # fmt: skip


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command all options; it receives them as one argument, `selection`."""
    return _with_selection(command, (*_CHIP_OPTIONS, *_WORKLOAD_OPTIONS))


def record_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command that lists records all options, and `--last`."""
    last = click.option("--last", is_flag=True, help="Only the newest of them.")
    return _with_selection(command, (*_CHIP_OPTIONS, *_WORKLOAD_OPTIONS, last))


def chip_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command `--arch` and `--device` only, as a `selection` too."""
    return _with_selection(command, _CHIP_OPTIONS)


def _with_selection(
    command: Callable[..., Any], options: Sequence[Callable[[Any], Any]]
) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(**values: Any) -> Any:
        selection = _select({name: values.pop(name, None) for name in SELECTING})
        selection = replace(selection, last=values.pop("last", False))
        return command(selection=selection, **values)

    for option in reversed(options):
        run = option(run)
    return run


def _select(given: dict[str, Any]) -> Selection:
    """One selection out of the options, each checked by itself.

    Raises click.UsageError for two that say the same thing and TunefaError for unknown names.
    """
    arch, device, model, text = (given.pop(name) for name in ("arch", "device", "model", "text"))
    fields = {name: value for name, value in given.items() if value is not None}
    if text is not None and (fields or model):
        extra = ", ".join([*(["--model"] if model else []), *map(_flag, fields)])
        raise click.UsageError(f"-w names the whole workload: leave out {extra}, or -w")
    if text is not None:
        Workload.parse(text)
    if arch is not None or device is not None:
        targets.named(arch, device)
    if model is not None:
        shape = model_presets.load(model)
        for name in ("heads", "heads_kv", "head_dim"):
            if name in fields:
                raise click.UsageError(
                    f"--model {shape.name} has {name} {getattr(shape, name)}: "
                    f"leave out {_flag(name)}, or --model"
                )
            fields[name] = getattr(shape, name)
    return Selection(text, fields, arch, device)


def _flag(name: str) -> str:
    """The option that gives a field."""
    flags = {"dtype": "--dtype", "causal": "--causal/--full"}
    flags |= {"softcap": "--softcap", "varlen": "--varlen"}
    return flags.get(name) or _SIZE_OPTIONS[name][0]


def _words(name: str, value: Any) -> str:
    """The option that gives a field a value, as a user writes it."""
    if name == "causal":
        return "--causal" if value else "--full"
    if name in ("softcap", "varlen"):
        return f"--{name}"
    return f"{_flag(name)} {value + 1 if name == 'window_left' else value}"
