"""Tuned options for PyTorch's FlexAttention: `search` finds them, `use_records` uses them.

    from tunefa.integrations import flex
    flex.search(q, k, v, score_mod, block_mask)  # once, on the device
    flex.use_records()

What was searched for a mask and a score function runs for these functions. For others there are
tile sizes of records of tunefa's own Triton kernels, which only stand beside Inductor's own: where
there are several, Inductor times all of them with the user's functions. Source of the interface:
torch/_inductor/choices.py and config.py of PyTorch 2.13.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

from tunefa.errors import TunefaError
from tunefa.integrations import flex_pass, flex_tuned
from tunefa.integrations.flex_calls import FlexCall
from tunefa.integrations.flex_search import search as search
from tunefa.integrations.flex_tuned import last_choices as last_choices
from tunefa.runtime.argument_checks import DTYPES
from tunefa.runtime.chip import Chip
from tunefa.spec.target import Target
from tunefa.store.exports.triton import is_of_gpu
from tunefa.store.record import Record
from tunefa.store.results import Store, default_store, read

MOST = 3
"""The options that are added at most: Inductor compiles and times each of them."""
OPTIONS: Mapping[str, Mapping[str, str]] = {
    op: {**{name.lower(): name for name in tiles}, "num_warps": "num_warps"}
    | {"num_stages": "num_stages"}
    for op, tiles in {
        "fwd": ("BLOCK_M", "BLOCK_N"),
        "bwd": ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2"),
    }.items()
}
"""By op, Inductor's names of what FlexAttention's kernels share with tunefa's, and tunefa's."""


def use_records(path: str | PathLike[str] | None = None) -> int:
    """Lets Inductor use what `search` found for a FlexAttention's functions, and try the options of
    other records of tunefa for each other one, and returns how many records have some.

    The records are those of the YAML file `path`, or else the user's and those that tunefa ships.
    It counts for the thread that calls it, until `use_defaults`, and not for what is compiled
    already. A second call reads the records again.

    Raises TunefaError for a file that cannot be read, where PyTorch has no such hook (before 2.10),
    and where another class of choices is installed.
    """
    if not hasattr(config, "inductor_choices_class"):
        raise TunefaError(
            f"PyTorch {torch.__version__} has no inductor_choices_class: install 2.10 or newer, or "
            f"pass kernel_options, which `tunefa export --format flex` writes"
        )
    active = config.inductor_choices_class
    if active is not None and not isinstance(active, _Factory):
        raise TunefaError(
            f"torch._inductor.config.inductor_choices_class is {active!r} already: set it to None "
            f"first"
        )
    if path is not None:
        read(Path(path))  # a store only warns about a file that it cannot read
    store = default_store() if path is None else Store([Path(path)])
    made = _Factory(RecordedChoices(store))
    config.inductor_choices_class = made
    V.set_choices_handler(made())  # a thread keeps the one that it has met first
    return len(made.choices.records) + flex_tuned.use(store)


def use_defaults() -> None:
    """Undoes `use_records`; changes nothing where it was not called."""
    if isinstance(getattr(config, "inductor_choices_class", None), _Factory):
        config.inductor_choices_class = None
        V.set_choices_handler(InductorChoices())
    flex_pass.end()


class RecordedChoices(InductorChoices):
    """Inductor's choices, and for FlexAttention on CUDA those of a store's records besides."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.records = [
            *store.best(lambda record: _holds(record, "fwd")),
            *store.best(lambda record: _holds(record, "bwd")),
        ]

    def uuid(self) -> str:
        """The key of what is compiled with these choices, for Inductor's caches."""
        said = [[str(x.workload), x.arch, x.device, sorted(_own(x).items())] for x in self.records]
        return f"tunefa-{hashlib.sha256(repr((MOST, said)).encode()).hexdigest()}"

    def get_flex_attention_fwd_configs(
        self, head_dim: int, dtype: torch.dtype, device_type: str | None = "cuda", *more: Any
    ) -> list[Any]:
        """Returns the options to try for the forward pass, Inductor's own first."""
        own = super().get_flex_attention_fwd_configs(head_dim, dtype, device_type, *more)
        return self._with_recorded(own, "fwd", (head_dim, dtype), device_type)

    def get_flex_attention_bwd_configs(
        self, head_dim: int, dtype: torch.dtype, device_type: str | None = "cuda", *more: Any
    ) -> list[Any]:
        """Returns the options to try for the backward pass, Inductor's own first."""
        own = super().get_flex_attention_bwd_configs(head_dim, dtype, device_type, *more)
        return self._with_recorded(own, "bwd", (head_dim, dtype), device_type)

    def _with_recorded(
        self, own: list[Any], op: str, sizes: tuple[int, torch.dtype], device_type: str | None
    ) -> list[Any]:
        target = Chip.of(torch.device("cuda")).target if device_type == "cuda" else None
        if target is None or not own or _has_options():
            return own
        head_dim, dtype = sizes
        found = recorded(self.records, op, (head_dim, DTYPES.get(dtype, "")), target)
        made = [dataclasses.replace(own[0], **options) for options in found]
        return own + [each for each in made if each not in own]


def recorded(
    records: Sequence[Record], op: str, sizes: tuple[int, str], target: Target
) -> list[dict[str, int]]:
    """Returns the options of records for an op and (head_dim, dtype) on a target, `MOST` at most.

    Those that were measured on the target's device come first, then those for the most scores.
    """

    def place(record: Record) -> tuple[bool, bool, int]:
        scores = record.workload.seqlen_q * record.workload.seqlen_k
        return record.device is None, record.device != target.device.name, -scores

    found: list[dict[str, int]] = []
    for record in sorted(records, key=place):
        workload = record.workload
        is_other = (workload.op, record.arch) != (op, target.arch.name)
        if is_other or (workload.head_dim, workload.dtype) != sizes:
            continue
        options = _own(record)
        if options not in found:
            found.append(options)
    return found[:MOST]


def _holds(record: Record, op: str) -> bool:
    """Whether a record is of a Triton kernel for the op, with options that FlexAttention takes."""
    config_ = record.config
    if record.workload.op != op or not is_of_gpu(record):
        return False
    if not all(name in config_ for name in OPTIONS[op].values()):
        return False
    # FlexAttention's backward kernel steps through whole blocks.
    return op == "fwd" or not (
        config_["BLOCK_N1"] % config_["BLOCK_M1"] or config_["BLOCK_M2"] % config_["BLOCK_N2"]
    )


def _has_options() -> bool:
    """Whether the call that is compiled has options already, which all choices would share."""
    node = getattr(V.graph, "current_node", None)
    call = None if node is None else FlexCall.of(node.target, node.args)
    return call is not None and bool(call.chosen_by_user)


def _own(record: Record) -> dict[str, int]:
    """The options of a record by Inductor's names."""
    return {name: record.config[own] for name, own in OPTIONS[record.workload.op].items()}


class _Factory:
    """The content of Inductor's config: it gives the choices, and tells that they are tunefa's."""

    def __init__(self, choices: RecordedChoices) -> None:
        self.choices = choices

    def __call__(self) -> InductorChoices:
        return self.choices
