"""The binaries of one family of dense calls on one device, and launches that are prepared for
them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tunefa.compile.contract import Compiled
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import heads_first
from tunefa.runtime.choice import Chosen
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.family_facts import FamilyFacts
from tunefa.runtime.kernel_plan import Launches
from tunefa.runtime.tables import TableCache
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import identity
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice

MAX_BINARIES = 1024
"""For how many lengths, up to their divisors, a family remembers which binary serves them."""


class FamilyBinaries:
    """The binaries that a family's calls may run, as far as they were compiled."""

    def __init__(self, facts: FamilyFacts, compiler: Compiler, tables: TableCache) -> None:
        self._facts, self._compiler, self._tables = facts, compiler, tables
        self._known: BoundedCache[tuple[Compiled]] = BoundedCache(MAX_BINARIES)

    def compiled(self, case: Case, choice: Choice) -> Compiled | None:
        """The binary of a choice, if it was compiled before."""
        key = choice.kernel, identity(choice.config), *divisors(case.workload)
        found = self._known.get(key)
        if found is None:
            compiled = self._compiler.known(case, choice.config, True)
            if compiled is None:
                return None
            self._known.add(key, found := (compiled,))
        return found[0]

    def launches(
        self, chosen: Chosen, kernel: Kernel, compiled: Compiled, views: tuple[Tensor, ...]
    ) -> Launches | None:
        """The launches of a binary for calls with these tensors, which have heads first; None where
        its kernel wants them otherwise aligned."""
        prepare, w, q = self._facts.preparing(kernel, compiled, chosen), chosen.workload, views[0]
        assert w is not None
        out = q.new_empty(_out_shape(w, self._facts.layout))
        lse = q.new_empty((w.batch, w.heads, w.seqlen_q), dtype=torch.float32)
        tensors = *views, heads_first(out, self._facts.layout), lse
        if not kernel.module.is_aligned(tensors):
            return None
        usual = prepare(tensors, float(w.head_dim**-0.5), self._tables)
        return Launches(q.get_device(), usual, prepare)


def _out_shape(w: Workload, layout: str) -> tuple[int, ...]:
    rows = (w.heads, w.seqlen_q) if layout == "bhsd" else (w.seqlen_q, w.heads)
    return w.batch, *rows, w.head_dim_v


def divisors(w: Workload) -> tuple[int, int, int]:
    """Returns what a binary may depend on: which blocks divide the queries, the keys, and the keys
    without those that stand before the first query. Blocks are multiples of 16."""
    rows, keys, before = w.seqlen_q, w.seqlen_k, w.seqlen_k - w.seqlen_q
    return (
        0 if rows % 16 else rows,
        0 if keys % 16 else keys,
        -1 if before < 0 else math.gcd(before, 256),
    )
