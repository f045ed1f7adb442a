"""Makes the plans of one family of dense calls, which differ in batch and lengths only.

The first call of a family is planned as every call was before there were families
(`tunefa.runtime.planning`). The second one prepares the family, which takes tens of milliseconds.
From then on a new length costs no compiling, no file and no search through records: the choice is
the family's (`tunefa.runtime.family`), the binary is one that was compiled before, and tables are
shared. Where a call needs another binary, which a family does for each of its few configs once, the
call is planned as the first one was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Options, Tensors, heads_first
from tunefa.runtime.cells import Lengths
from tunefa.runtime.choice import Chosen
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.family import Family
from tunefa.runtime.kernel_plan import KernelPlan, Launches
from tunefa.runtime.tables import TableCache
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice

MAX_BINARIES = 1024
"""For how many lengths, up to their divisors, a family remembers which binary serves them."""
_MAX_STRIDE = 2**31
Prepare = Callable[[Sequence[Tensor], float], Launch]
"""Prepares a launch for a scale."""


def family_key(tensors: Tensors, options: Options) -> Hashable:
    """Returns what calls of one family share; None for calls that are planned one by one.

    These have packed sequences, e4m3, a window, a tensor that is not aligned, or wrong arguments.
    """
    q, k, v, cu_seqlens, descales = tensors
    if cu_seqlens is not None or descales or q.dtype == E4M3:
        return None
    if options.window_left is not None or options.window_right is not None:
        return None  # of short sequences a window hides nothing, which is another family
    at = 1 if options.layout == "bshd" else 2  # the axis of lengths
    of_q, of_k, of_v = q.shape, k.shape, v.shape
    if not (len(of_q) == len(of_k) == len(of_v) == 4) or 0 in of_q or 0 in of_k or 0 in of_v:
        return None
    heads, heads_kv = of_q[3 - at], of_k[3 - at]
    steps = *q.stride(), *k.stride(), *v.stride()
    mixed = q.data_ptr() | k.data_ptr() | v.data_ptr()
    for step in (*steps[:3], *steps[4:7], *steps[8:11]):
        mixed |= step
    if (
        of_q[0] != of_k[0]
        or of_k[:3] != of_v[:3]
        or of_q[3] != of_k[3]
        or of_v[3] % 16
        or mixed % 16
        or 0 in steps
        or max(*steps[1:3], *steps[5:7], *steps[9:11]) >= _MAX_STRIDE
        or not steps[3] == steps[7] == steps[11] == 1
    ):
        return None
    return (
        *(q.dtype, k.dtype, v.dtype, q.get_device(), k.get_device(), v.get_device()),
        *(heads, heads_kv, of_q[3], of_v[3]),
        options,
    )


class FamilyPlans:
    """The plans of a family on one device."""

    def __init__(
        self, family: Family, compiler: Compiler, tables: TableCache, softcap: float | None
    ) -> None:
        self._family, self._compiler, self._tables = family, compiler, tables
        self._softcap = softcap
        self._binaries: BoundedCache[tuple[Compiled]] = BoundedCache(MAX_BINARIES)

    def plan(self, tensors: Tensors, layout: str) -> KernelPlan | None:
        """The plan for a call of the family; None where something must be compiled first, and where
        no kernel serves the call."""
        views = _heads_first(tensors, layout)
        q, k, _ = views
        try:
            workload = self._family.workload(Lengths(q.shape[0], q.shape[2], k.shape[2]))
            choice = self._family.quick(workload)
            kernel = self._family.kernel(choice.kernel)
            case = Case(kernel, workload, self._family.target)
            if kernel.is_library or (compiled := self._compiled(case, choice)) is None:
                return None
            spec = LaunchSpec(case, choice.config, 0.0)
            launches = self._launches(spec, compiled, views, layout)
        except (CompileError, TunefaError):  # planning it anew says why
            return None
        chosen = Chosen(kernel.name, choice.config, choice.how, choice.why, workload)
        return None if launches is None else _plan(chosen, launches, tensors, layout)

    def _compiled(self, case: Case, choice: Choice) -> Compiled | None:
        """The binary of a choice, if it was compiled before."""
        key = choice.kernel, *choice.config.values(), *divisors(case.workload)
        found = self._binaries.get(key)
        if found is None:
            compiled = self._compiler.known(case, choice.config, True)
            if compiled is None:
                return None
            self._binaries.add(key, found := (compiled,))
        return found[0]

    def _launches(
        self, spec: LaunchSpec, compiled: Compiled, views: tuple[Tensor, ...], layout: str
    ) -> Launches | None:
        """The launches of a binary for calls with these tensors, which have heads first; None where
        its kernel wants them otherwise aligned."""
        language = languages.load(spec.case.kernel.language)
        softcap = self._softcap

        def prepare(tensors: Sequence[Tensor], scale: float, tables: Any = None) -> Launch:
            asked = LaunchSpec(spec.case, spec.config, scale, softcap, tables=tables)
            launch: Launch = language.prepare(asked, compiled, tensors)
            return launch

        w = spec.workload
        q = views[0]
        out = q.new_empty(_out_shape(w, layout))
        lse = q.new_empty((w.batch, w.heads, w.seqlen_q), dtype=torch.float32)
        tensors = *views, heads_first(out, layout), lse
        if not spec.case.kernel.module.is_aligned(tensors):
            return None
        usual = prepare(tensors, float(w.head_dim**-0.5), self._tables)
        return Launches(q.get_device(), usual, prepare)


def _plan(chosen: Chosen, launches: Launches, tensors: Tensors, layout: str) -> KernelPlan:
    q, w = tensors.q, chosen.workload
    assert w is not None
    out_like_q = q.is_contiguous() and w.head_dim == w.head_dim_v
    return KernelPlan(chosen, layout, launches, rows_contiguous=True, out_like_q=out_like_q)


def _out_shape(w: Workload, layout: str) -> tuple[int, ...]:
    rows = (w.heads, w.seqlen_q) if layout == "bhsd" else (w.seqlen_q, w.heads)
    return w.batch, *rows, w.head_dim_v


def _heads_first(tensors: Tensors, layout: str) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = tensors[:3]
    return heads_first(q, layout), heads_first(k, layout), heads_first(v, layout)


def divisors(w: Workload) -> tuple[int, int, int]:
    """Returns what a binary may depend on: which blocks divide the queries, the keys, and the keys
    without those that stand before the first query. Blocks are multiples of 16."""
    rows, keys, before = w.seqlen_q, w.seqlen_k, w.seqlen_k - w.seqlen_q
    return (
        0 if rows % 16 else rows,
        0 if keys % 16 else keys,
        -1 if before < 0 else math.gcd(before, 256),
    )
