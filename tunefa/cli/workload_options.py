"""The options for workload and chip, which are the same for every command.

A command for one workload takes `workload` and `target` of the selection. A command that lists
records asks which of them it selects, by `among`; an option that is not given selects all.
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


class Selectable(Protocol):
    """Something that has a workload and a chip: a record, or a failure."""

    @property
    def workload(self) -> Workload: ...

    @property
    def arch(self) -> str: ...

    @property
    def device(self) -> str | None: ...


@dataclass(frozen=True)
class Selection:
    """The workload and chip that a user has given."""

    text: str | None = None
    """`-w`."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The fields of Workload that were given one by one, with those of a model preset."""
    arch: str | None = None
    device: str | None = None
    last: bool = False
    """Whether only the newest of the selected records is wanted."""

    @property
    def workload(self) -> Workload:
        """The workload, defaults included. Raises TunefaError if it is not valid."""
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
        """Whether the target is the device of this machine."""
        return self._chosen.present

    @property
    def chip_words(self) -> list[str]:
        """The options that name this chip, for a command line."""
        words = ["--arch", self.target.arch.name if self.arch is None else self.arch]
        return [*words, "--device", self.device] if self.device is not None else words

    def among(self, records: Sequence[Record]) -> list[Record]:
        """The records that match, in their order. Raises TunefaError for unknown names."""
        chosen = [record for record in records if self.selects(record)]
        if self.last and chosen:
            return [min(chosen, key=lambda record: record.rank[-1])]
        return chosen

    def selects(self, record: Selectable) -> bool:
        """Whether a record, or a failure, matches everything that was given.

        Raises TunefaError for unknown names.
        """
        return self.mismatch(record) is None

    def mismatch(self, placed: Selectable) -> str | None:
        """The first given option that does not match; None if all do.

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
        if not self._chip_matches(placed):
            chip = {"--arch": self.arch, "--device": self.device}
            return " ".join(f"{flag} {value}" for flag, value in chip.items() if value is not None)
        return None

    def _chip_matches(self, record: Selectable) -> bool:
        if self.arch is None and self.device is None:
            return True
        target, is_named = targets.named(self.arch, self.device)
        if record.arch != target.arch.name:
            return False
        return not is_named or targets.same(record.device, target.device)


def _size(ctx: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """Reads the number of an option: `8192` or `8k`. `--window` counts the query's own key, and the
    field `window_left` does not."""
    if value is None:
        return None
    size = parse_size(value, option.opts[0])
    return size - 1 if option.name == "window_left" else size


_SIZE_OPTIONS = {
    "batch": ("--batch", "Number of sequences.  [default: 1]"),
    "heads": ("--heads", "Query heads; without --kv-heads, also the KV heads.  [default: 32]"),
    "heads_kv": ("--kv-heads", "Key and value heads.  [default: 8]"),
    "seqlen_q": ("--seqlen", "Query rows, such as 8192 or 8k; without --seqlen-k, also the keys."),
    "seqlen_k": ("--seqlen-k", "Keys.  [default: as many as query rows]"),
    "head_dim": ("--head-dim", "Elements of one head, 16 to 256.  [default: 128]"),
    "window_left": (
        "--window",
        "Sliding window: keys up to the diagonal that a query sees, with the one on it.  "
        "[default: all]",
    ),
    "window_right": (
        "--window-right",
        "Keys beyond the diagonal that a query sees; the mask is not causal then.",
    ),
}


SELECTING = (
    *("arch", "device", "model", *_SIZE_OPTIONS, "dtype", "causal", "softcap", "varlen", "text"),
)
"""The parameters of a selection, by click's names."""

_CHIP_OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--arch",): {"metavar": "NAME", "help": (
        "Chip family (sm90) or device (h200).  [default: this machine's GPU, else sm90]")},
    ("--device",): {"metavar": "NAME", "help": "Device of the chip family, such as h200."},
}  # fmt: skip

_WORKLOAD_OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--model",): {"metavar": "PRESET", "help": (
        "Take heads and head_dim from the preset of a language model, such as llama3-8b.")},
    **{
        (flag, name): {"callback": _size, "metavar": "N", "help": text}
        for name, (flag, text) in _SIZE_OPTIONS.items()
    },
    ("--dtype",): {"metavar": "NAME", "help": f"{', '.join(DTYPES)}.  [default: bf16]"},
    ("--causal/--full", "causal"): {"default": None, "help": (
        "Causal mask, aligned to the bottom right, or no mask.  [default: causal]")},
    ("--softcap",): {"is_flag": True, "default": None, "help": (
        "Soft-cap: scores are bounded by a tanh, as in Gemma 2.")},
    ("--varlen",): {"is_flag": True, "default": None, "help": (
        "Packed sequences of different lengths; --seqlen is the longest.")},
    ("-w", "--workload", "text"): {"metavar": "WORKLOAD", "help": (
        "The whole workload as one word, such as b4_h32_kv8_q4096_d128_bf16_causal.")},
}  # fmt: skip


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command all options; it receives them as one argument, `selection`."""
    return _with_selection(command, {**_CHIP_OPTIONS, **_WORKLOAD_OPTIONS})


def record_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command that lists records all options, and `--last`. They have no defaults there."""
    options: dict[tuple[str, ...], dict[str, Any]] = {
        names: {**settings, "help": settings["help"].partition("  [default")[0]}
        for names, settings in {**_CHIP_OPTIONS, **_WORKLOAD_OPTIONS}.items()
    }
    options["--last",] = {"is_flag": True, "help": "Only the newest of them."}
    return _with_selection(command, options)


def chip_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command only `--arch` and `--device`, also as a `selection`."""
    return _with_selection(command, _CHIP_OPTIONS)


def _with_selection(
    command: Callable[..., Any], options: Mapping[tuple[str, ...], Mapping[str, Any]]
) -> Callable[..., Any]:
    """Gives a command options, by their names and click's settings."""

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        selection = _select({name: values.pop(name, None) for name in SELECTING})
        selection = replace(selection, last=values.pop("last", False))
        return command(selection=selection, **values)

    for names, settings in reversed(list(options.items())):
        run = click.option(*names, **settings)(run)
    return run


def _select(given: dict[str, Any]) -> Selection:
    """Makes a selection from the options.

    Raises click.UsageError for two options that say the same thing, and TunefaError for unknown
    names.
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
    """The name of the option for a field."""
    flags = {"dtype": "--dtype", "causal": "--causal/--full"}
    flags |= {"softcap": "--softcap", "varlen": "--varlen"}
    return flags.get(name) or _SIZE_OPTIONS[name][0]


def _words(name: str, value: Any) -> str:
    """The option and value that a user writes for a field."""
    if name == "causal":
        return "--causal" if value else "--full"
    if name in ("softcap", "varlen"):
        return f"--{name}"
    return f"{_flag(name)} {value + 1 if name == 'window_left' else value}"
