"""Prompts on pages whose keys are copied to memory where they follow one another.

On Hopper the kernel for packed sequences takes 0.55 to 0.65 of the time of the one that reads
pages, where there are many queries. It needs keys that follow one another, and copying them costs
as much as reading and writing them once. So it pays where each key that is copied meets many query
rows (docs/serving.md has the times).
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.contract import CompileError, Launch, LaunchSpec
from tunefa.compile.serving import is_measured_on
from tunefa.errors import TunefaError
from tunefa.runtime import planning
from tunefa.runtime.call import Call, Tensors
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.kernel_plan import KernelPlan, Launches
from tunefa.runtime.plan import Forward, Plan
from tunefa.runtime.planning import Compile
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors
from tunefa.runtime.prefill_plan import Prefill
from tunefa.runtime.sinks import add_sinks
from tunefa.spec.kernel import Kernel
from tunefa.spec.rounding import coarse_ceil
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload
from tunefa.store.results import Store

LEAST_ROWS = 1024
"""The fewest query rows of a KV head that a key is copied for. Measured on an H200 with groups of 4
heads, without the copy: with 264 queries of a sequence and more, on average, the packed kernel
takes 0.55 to 0.65 of the time over pages, and with 33 and fewer it takes longer. No measurement
lies between."""
MOST_BYTES = 2**30
"""The most bytes of the copies of a call."""
ARCH = "sm90"


class GatherKernel:
    """The copy, as what is compiled and launched like a kernel; it has no search space."""

    name = "gather_pages"
    language = "triton"

    @cached_property
    def module(self) -> ModuleType:
        """The host side. The folder of kernels is known where one of them was imported."""
        return importlib.import_module("tunefa.kernels.prefill.gather_pages")


_KERNEL: Any = GatherKernel()


@dataclass(frozen=True)
class Gathered(Forward):
    """Attention of packed queries over keys that were copied from pages, as the job that a plan is
    made for."""

    what = "keys on pages are not copied, as packed attention would run"

    def plan(self, chosen: Chosen, launches: Launches) -> Plan:
        """The plan that starts these launches."""
        why = f"many queries, so the keys on pages are gathered first; {chosen.why}"
        return super().plan(replace(chosen, why=why), launches)


@dataclass(frozen=True)
class GatheredPlan:
    """Copies the keys of each call, and runs a plan for packed sequences on the copies.

    A call allocates the copies, and they are freed with its end.
    """

    packed: KernelPlan
    gather: Launch
    most_keys: int
    """The most keys of a sequence that are copied."""

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs on the copies, and why."""
        return self.packed.chosen

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the plan holds; the copies belong to a call."""
        return self.packed.device_bytes + self.gather.device_bytes

    def run(
        self, tensors: PrefillTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` in `out` if given."""
        copied = copies(tensors, self.most_keys)
        given = of_gather(tensors, copied)
        self.packed.launches.start(self.gather, given)
        found, lse = self.packed.run(packed(tensors, copied), scale, out)
        if tensors.sinks is not None:
            lse = add_sinks(found, lse, tensors.sinks, tensors.cu_seqlens_q)
        return found, lse


Copies = tuple[Tensor, Tensor, Tensor]
"""Keys, (keys, heads_kv, head_dim), values, (keys, heads_kv, head_dim_v), and where those of each
sequence begin, (batch + 1,) in int32."""


def copies(tensors: PrefillTensors, most_keys: int) -> Copies:
    """Returns memory for the copies of a call, of which each sequence has `most_keys` at most."""
    q, k, v = tensors[:3]
    batch, columns = tensors.block_table.shape
    keys = batch * min(columns * k.shape[1], most_keys)
    starts = q.new_empty((batch + 1,), dtype=torch.int32)
    return q.new_empty((keys, *k.shape[2:])), q.new_empty((keys, *v.shape[2:])), starts


def of_gather(tensors: PrefillTensors, copied: Copies) -> tuple[Tensor, ...]:
    """Returns the tensors that the kernel which copies takes."""
    descales = (each for each in tensors[-2:] if each is not None)
    return tensors.k, tensors.v, tensors.seqlens_k, tensors.block_table, *copied, *descales


def packed(tensors: PrefillTensors, copied: Copies) -> Tensors:
    """Returns the tensors of the call over the copies."""
    k, v, starts = copied
    return Tensors(tensors.q, k, v, (tensors.cu_seqlens_q, starts))


def plan(
    job: Prefill, chip: Chip, store: Store, kernels: Sequence[Kernel], compile: Compile
) -> GatheredPlan | None:
    """The plan of a call over pages that runs on copies of its keys; None for other calls, and
    where a record was measured for just this call on this device.

    `kernels` are those of the forward pass. Warns where the copy does not compile.
    """
    try:
        workload, target = planning.served(job, chip)
    except TunefaError:  # the plan for the pages says what no kernel serves
        return None
    call = job.call
    if target.arch.name != ARCH or why_not(call, workload, job.out) is not None:
        return None
    if any(each.workload == workload and is_measured_on(each, target) for each in store.records()):
        return None
    own = [each for each in kernels if not each.is_library]
    over = planning.best_plan(Gathered(_call_over_copies(call)), chip, store, own, compile)
    if not isinstance(over, KernelPlan):
        return None
    try:
        gather = _prepared(call, Case(_KERNEL, workload, target), compile)
    except (CompileError, TunefaError) as error:
        warnings.warn(f"keys on pages are not copied: {error}", stacklevel=2)
        return None
    return GatheredPlan(over, gather, workload.seqlen_k)


def why_not(call: PrefillCall, workload: Workload, out: Tensor | None) -> str | None:
    """Returns why the keys of a call are not copied on Hopper; None if they are.

    It depends on nothing that calls with one plan may differ in.
    """
    rows, batch = coarse_ceil(call.q.shape[0]), coarse_ceil(call.tensors.seqlens_k.shape[0])
    if rows_of_key(workload, rows, batch) < LEAST_ROWS:
        return f"a key meets fewer than {LEAST_ROWS} query rows"
    if bytes_of_copies(workload, batch) > MOST_BYTES:
        return f"the copies may take more than {MOST_BYTES} bytes"
    if workload.e4m3cache and workload.dtype == "fp16":
        return "keys and values times their factors may be too large for fp16"
    given = [call.q, call.tensors.k, call.tensors.v] + ([] if out is None else [out])
    if any(each.data_ptr() % 16 for each in given):
        return "a tensor is not 16-byte aligned"
    if any(each.stride(-1) != 1 for each in given[1:]):
        return "the rows of k, v or out are not contiguous"
    if out is not None and not out.is_contiguous():
        return "out is not contiguous"
    return None


def rows_of_key(workload: Workload, rows: int, batch: int) -> float:
    """Returns how many query rows of a KV head each key of a sequence meets, if lengths are equal,
    and a causal mask hides none. A window lets a row see a part of the keys."""
    left, right = workload.band
    part = 1.0
    if left is not None and right is not None:
        part = min(1.0, (left + 1 + right) / workload.seqlen_k)
    return min(rows / batch, workload.seqlen_q) * workload.group * part


def bytes_of_copies(workload: Workload, batch: int) -> int:
    """Returns the bytes of the copies, if all sequences have as many keys as the longest may."""
    columns = workload.head_dim + workload.head_dim_v
    return batch * workload.seqlen_k * workload.heads_kv * columns * 2


def _call_over_copies(call: PrefillCall) -> Call:
    """The call over the copies. Its launches depend on no number of keys, so sequences have one."""
    options = call.options._replace(max_seqlen_k=call.workload().seqlen_k)
    return Call.of(packed(call.tensors, copies(call.tensors, 1)), options, None)


def _prepared(call: PrefillCall, case: Case, compile: Compile) -> Launch:
    """The launch of the copy. Raises CompileError or TunefaError where it does not compile."""
    given = of_gather(call.tensors, copies(call.tensors, 1))
    compiled = compile(case, {}, case.kernel.module.is_aligned(given))
    spec = LaunchSpec(case, {}, 1.0)
    launch: Launch = languages.load(case.kernel.language).prepare(spec, compiled, given)
    return launch
