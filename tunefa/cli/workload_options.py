"""The options for workload and chip, which are the same for every command.

A command that works on workloads takes them from `each` of the selection, one after the other: a
repeated `-w` names several, and so does `--model` for a model with several kinds of layers. A
command that lists records asks which of them it selects, by `among`; an option that is not given
selects all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import click

from tunefa.cli import completion, model_options, option_values, targets
from tunefa.cli.field_options import SIZE_OPTIONS, flag, words
from tunefa.cli.targets import ChosenTarget
from tunefa.spec.model_layers import Model
from tunefa.spec.target import Target
from tunefa.spec.workload import DTYPES, Workload
from tunefa.spec.workload_parts import FLAGS
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
    """The workloads and the chip that a user has given."""

    texts: tuple[str, ...] = ()
    """`-w`, each time."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The fields of Workload that were given one by one."""
    models: tuple[Model, ...] = ()
    """`--model`, each time, with the kinds of layers that the other options leave."""
    arch: str | None = None
    device: str | None = None
    last: bool = False
    """Whether only the newest of the selected records is wanted."""
    layers: str | None = None
    """The layers of a model that have the workload, for a selection that `each` returned."""

    chosen: ChosenTarget | None = None
    """The chip, once it has been looked for."""

    def each(self) -> list[Selection]:
        """Returns a selection for each workload, which has that one only; there is at least one.

        Raises TunefaError if a workload is not valid, and click.UsageError for none.
        """
        alone = replace(self, fields={}, models=(), chosen=self._chosen)
        return [
            replace(alone, texts=(str(workload),), layers=" and ".join(layers) or None)
            for workload, layers in self._workloads().items()
        ]

    @property
    def workloads(self) -> list[Workload]:
        """All workloads, without a look for the chip. Raises what `each` raises."""
        return list(self._workloads())

    @property
    def workload(self) -> Workload:
        """The workload, defaults included; of several the first. Raises what `each` raises."""
        return next(iter(self._workloads()))

    def _workloads(self) -> dict[Workload, list[str]]:
        """Returns the workloads, each with the layers of models that have it."""
        is_decode = self.fields.get("op") == "decode"
        if is_decode and not self.models and "seqlen_k" not in self.fields:
            raise click.UsageError("no workload: give --seqlen-k (keys, such as --seqlen-k 8192)")
        if not self.texts and not is_decode and "seqlen_q" not in self.fields:
            raise click.UsageError(
                "no workload: give --seqlen (query rows, such as --seqlen 8192) or -w WORKLOAD"
            )
        found: dict[Workload, list[str]] = {Workload.parse(text): [] for text in self.texts}
        for model in self.models:
            for kind in model.kinds:  # a window that hides no key leaves the workload of another
                layers = found.setdefault(kind.workload(self.fields), [])
                layers.append(f"{model.name}, {model.share(kind)}")
        return found or {Workload.of(**self.fields): []}

    @functools.cached_property
    def _chosen(self) -> ChosenTarget:
        return self.chosen or targets.choose(self.arch, self.device)

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
        if self.texts and placed.workload not in map(Workload.parse, self.texts):
            return " ".join(f"-w {text}" for text in self.texts)
        op = placed.workload.op
        kinds = [kind for model in self.models for kind in model.of_op(op).kinds]
        if self.models and not any(kind.has(placed.workload) for kind in kinds):
            return " ".join(f"--model {model.name}" for model in self.models)
        fields = dict(self.fields)
        if "seqlen_q" in fields:
            fields.setdefault("seqlen_k", fields["seqlen_q"])
        for name, value in fields.items():
            if getattr(placed.workload, name, None) != value:  # an op may lack the field
                return words(name if name in self.fields else "seqlen_q", value)
        if not self._chip_matches(placed):
            chip = {"--arch": self.arch, "--device": self.device}
            return " ".join(f"{name} {value}" for name, value in chip.items() if value is not None)
        return None

    def _chip_matches(self, record: Selectable) -> bool:
        if self.arch is None and self.device is None:
            return True
        target, is_named = targets.named(self.arch, self.device)
        if record.arch != target.arch.name:
            return False
        # What was predicted for one device serves every device of the arch, see the lookup.
        return not is_named or record.device is None or targets.same(record.device, target.device)


_Options = Mapping[tuple[str, ...], Mapping[str, Any]]  # by names
SELECTING = (
    *("arch", "device", "models", "backward", "decode", *SIZE_OPTIONS, "dtype", "causal"),
    *FLAGS,
    "texts",
)
"""The parameters of a selection, by click's names."""

_CHIP_OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--arch",): {"metavar": "NAME", "shell_complete": completion.archs, "help": (
        "Chip family (sm90) or device (h200).  [default: this machine's GPU, else sm90]")},
    ("--device",): {"metavar": "NAME", "shell_complete": completion.devices, "help": (
        "Device of the chip family, such as h200.")},
}  # fmt: skip

_WORKLOAD_OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--model", "models"): {
        "metavar": "MODEL", "multiple": True, "shell_complete": completion.models, "help": (
            "The attention layers of a language model: a name such as gemma2-9b, or the path of a "
            "Hugging Face config.json. Each kind of its layers (sliding window, global) is a "
            "workload; a kind that tunefa cannot express is named and left out.")},
    ("--backward",): {"is_flag": True, "default": None, "help": (
        "The gradients of attention, the op bwd, instead of the forward pass.")},
    ("--decode",): {"is_flag": True, "default": None, "help": (
        "Attention of few queries over a cache, the op decode: --seqlen-k keys of each sequence, "
        "and --seqlen query rows.  [default: 1]")},
    **{
        (option, name): {"callback": option_values.size, "metavar": "N", "help": text}
        for name, (option, text) in SIZE_OPTIONS.items()
    },
    ("--dtype",): {
        "metavar": "NAME", "callback": option_values.dtype, "shell_complete": completion.dtypes,
        "help": (
            f"{', '.join(DTYPES)}, or PyTorch's name, such as bfloat16.  [default: bf16]")},
    ("--causal/--full", "causal"): {"default": None, "help": (
        "Causal mask, aligned to the bottom right, or no mask.  [default: causal]")},
    ("--softcap",): {"is_flag": True, "default": None, "help": (
        "Soft-cap: scores are bounded by a tanh, as in Gemma 2.")},
    ("--sinks",): {"is_flag": True, "default": None, "help": (
        "Attention sinks: a learned logit of each head beside its scores; with --decode or "
        "--page-size.")},
    ("--e4m3-cache", "e4m3cache"): {"is_flag": True, "default": None, "help": (
        "Keys and values in e4m3 under queries in --dtype; with --decode or --page-size.")},
    ("--mla",): {"is_flag": True, "default": None, "help": (
        "Multi-head latent attention in its absorbed form: one KV head, whose values are the first "
        "512 of the 576 columns of the keys; with --decode.")},
    ("--shared-prefix", "prefix"): {"is_flag": True, "default": None, "help": (
        "Sequences whose first half is the same pages, which are read once; with --decode.")},
    ("--varlen",): {"is_flag": True, "default": None, "help": (
        "Packed sequences of different lengths; --seqlen is the longest. With --decode, "
        "sequences with different numbers of keys.")},
    ("--deterministic",): {"is_flag": True, "default": None, "help": (
        "Gradients that are equal to the last bit in every run; with --backward.")},
    ("--batch-variant", "batchvariant"): {"is_flag": True, "default": None, "help": (
        "For calls with batch_invariant=False: the bits of a sequence may depend on the batch, so "
        "that installed libraries compete; with --decode.")},
    ("-w", "--workload", "texts"): {"metavar": "WORKLOAD", "multiple": True, "help": (
        "The whole workload as one word, such as b4_h32_kv8_q4096_d128_bf16_causal; may be "
        "repeated.")},
}  # fmt: skip


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command all options; it receives them as one argument, `selection`."""
    return _with_selection(command, {**_CHIP_OPTIONS, **_WORKLOAD_OPTIONS})


def workloads_without_chip(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options for workloads, but neither `--arch` nor `--device`."""
    return _with_selection(command, _WORKLOAD_OPTIONS)


def record_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command that lists records all options, and `--last`. They have no defaults there."""
    options = _without_defaults({**_CHIP_OPTIONS, **_WORKLOAD_OPTIONS})
    options["--last",] = {"is_flag": True, "help": "Only the newest of them."}
    return _with_selection(command, options)


def chip_filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command that lists what chips have `--arch` and `--device`, without defaults."""
    return _with_selection(command, _without_defaults(_CHIP_OPTIONS))


def _without_defaults(given: _Options) -> dict[tuple[str, ...], dict[str, Any]]:
    defaults = re.compile(r"  \[default.*|; without --kv-heads, .*(?=\.)")
    return {names: {**it, "help": defaults.sub("", it["help"])} for names, it in given.items()}


def chip_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command only `--arch` and `--device`, also as a `selection`."""
    return _with_selection(command, _CHIP_OPTIONS)


def _with_selection(command: Callable[..., Any], options: _Options) -> Callable[..., Any]:
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
    names, texts = given.pop("models") or (), given.pop("texts") or ()
    arch, device = given.pop("arch"), given.pop("device")
    fields = {name: value for name, value in given.items() if value is not None}
    of_texts = {Workload.parse(text).op for text in texts}
    for option, op in (("backward", "bwd"), ("decode", "decode")):
        if fields.pop(option, False) and of_texts != {op}:  # those say so already
            if "op" in fields:
                raise click.UsageError("--backward and --decode are two ops: leave out one")
            fields["op"] = op
    if texts and (fields or names):
        extra = ", ".join([*(["--model"] if names else []), *map(flag, fields)])
        raise click.UsageError(f"-w names the whole workload: leave out {extra}, or -w")
    if arch is not None or device is not None:
        targets.named(arch, device)
    models = tuple(model_options.loaded(name, fields, flag) for name in names)
    return Selection(texts, fields, models, arch, device)
