"""FlexAttention with the options that `tunefa.integrations.flex_search` found for its functions.

Inductor runs a pass over each graph that it compiles, before it makes kernels of it. Source of the
interface: torch/_inductor/custom_graph_pass.py of PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._inductor import config

from tunefa.errors import TunefaError
from tunefa.integrations import flex_calls, flex_kernels, flex_pass
from tunefa.integrations.flex_calls import FlexCall
from tunefa.integrations.flex_pass import OwnPass
from tunefa.runtime.chip import Chip
from tunefa.spec.target import Target
from tunefa.store import lookup
from tunefa.store.lookup import Choice
from tunefa.store.record import Record
from tunefa.store.results import Store


def use(store: Store) -> int:
    """Gives each FlexAttention that Inductor compiles from now on the options of the store's record
    for its functions, and returns how many such records there are.

    It counts for the thread that calls it, and not for what is compiled already. A second call
    reads the store again. A pass that is set already runs first.
    """
    flex_pass.end()
    made = TunedOptions(store, config.post_grad_custom_pre_pass)
    config.post_grad_custom_pre_pass = made
    return len(made.records)


def last_choices() -> dict[str, Choice]:
    """Returns the options of the last call that Inductor compiled with a record, by op ("fwd",
    "bwd"): `config`, and `why`. What Inductor takes from its caches is not compiled again."""
    active = config.post_grad_custom_pre_pass
    return active.choices if isinstance(active, OwnPass) else {}


def is_flex(record: Record) -> bool:
    """Whether a record is of FlexAttention's kernel for some functions."""
    return record.kernel.startswith(flex_kernels.PREFIX)


class TunedOptions(OwnPass):
    """The pass that changes the options of calls for which there is a record."""

    def __init__(self, store: Store, earlier: Any = None) -> None:
        """`earlier` is the pass that runs before it, if there is one."""
        self.store, self.earlier = store, earlier
        self.records = [record for record in store.records() if is_flex(record)]
        self._last: dict[str, Choice] = {}

    def __call__(self, graph: fx.Graph) -> None:
        """Changes the calls of a graph."""
        for each in self.earlier if isinstance(self.earlier, (list, tuple)) else [self.earlier]:
            if each is not None:
                each(graph)
        for node, call in flex_calls.calls_in(graph):
            choice = self.choice(call)
            if choice is not None:
                self._last[call.op] = choice
                place, own = call.options_place, flex_kernels.options(choice.config)
                options = {**call.options, **own}
                node.args = (*node.args[:place], options, *node.args[place + 1 :])

    def uuid(self) -> Any:
        """Returns the key of what is compiled with this pass, for Inductor's caches; None where the
        earlier pass has none, so that nothing is cached."""
        said = [repr((r.kernel, r.arch, r.device, str(r.workload), r.config)) for r in self.records]
        if self.earlier is not None:
            own: Callable[[], Any] | None = getattr(self.earlier, "uuid", None)
            earlier = None if own is None else own()
            if earlier is None:
                return None
            said.append(repr(earlier))
        return f"tunefa-flex-{hashlib.sha256(repr(said).encode()).hexdigest()}"

    @property
    def choices(self) -> dict[str, Choice]:
        """The last choice for each op."""
        return dict(self._last)

    def choice(self, call: FlexCall) -> Choice | None:
        """Returns the options for a call, from the record of its functions for the nearest lengths;
        None without one, and where the user has chosen options by hand."""
        workload = flex_calls.workload_of(call)
        if not self.records or call.chosen_by_user or workload is None or flex_calls.why_not(call):
            return None
        target = _target(call)
        kernel = flex_kernels.kernel_of(call)
        known = [record for record in self.records if record.kernel == kernel.name]
        if target is None or not known:
            return None
        ranked = lookup.by_trust(known, workload, target)
        with contextlib.suppress(TunefaError):  # none is near enough, or fits the block mask
            return lookup.lookup(self.store, workload, target, [kernel], ranked)
        return None


def _target(call: FlexCall) -> Target | None:
    """The target of a call in a graph; None where it is no CUDA device that tunefa knows."""
    q = call.qkv[0]
    device: torch.device = (q.meta["val"] if isinstance(q, fx.Node) else q).device
    return Chip.of(device).target if device.type == "cuda" else None
