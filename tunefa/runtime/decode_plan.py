"""The plans of attention over a cache: a plan runs calls with one kernel and config, or in PyTorch
where no kernel serves them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs, as_indexed
from tunefa.runtime.cache_checks import check_pages
from tunefa.runtime.call import has_no_numbers, heads_first
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_call import (
    CacheCall,
    CacheOptions,
    CacheTensors,
)
from tunefa.runtime.kernel_plan import Launches, all_heads_first, new_lse, unread_lse
from tunefa.runtime.library_plan import results
from tunefa.runtime.sinks import with_sinks
from tunefa.spec import looked_up
from tunefa.spec.kernel import Kernel
from tunefa.spec.rounding import ceil_div
from tunefa.spec.workload import Workload


class CachePlan(Protocol):
    """Runs all calls of one key, see `tunefa.runtime.decode_call.key`."""

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs, and why."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that it holds."""

    def run(
        self, tensors: CacheTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` in the call's layout, in `out` if given."""

    def output(self, tensors: CacheTensors, scale: float | None, out: Tensor | None) -> Tensor:
        """Runs a call; returns `out` alone."""


@dataclass(frozen=True)
class KernelCachePlan:
    """Launches one compiled config, on the tensors' device and its current stream."""

    chosen: Chosen
    options: CacheOptions
    launches: Launches
    rows_contiguous: bool
    """Whether the rows of q are contiguous. If not, they are copied in each call."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the plan holds."""
        return self.launches.launch.device_bytes

    def run(
        self, tensors: CacheTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse)."""
        lse = new_lse(tensors.q, self._shapes[1])
        return self._run(tensors, scale, out, lse), lse

    def output(self, tensors: CacheTensors, scale: float | None, out: Tensor | None) -> Tensor:
        """Runs a call; returns `out`. No memory is allocated for lse."""
        return self._run(tensors, scale, out, self._unread_lse)

    @functools.cached_property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of out and lse."""
        w = self._workload
        rows = (w.heads, w.seqlen_q) if self.options.layout == "bhsd" else (w.seqlen_q, w.heads)
        return (w.batch, *rows, w.head_dim_v), (w.batch, w.heads, w.seqlen_q)

    @functools.cached_property
    def _unread_lse(self) -> Tensor:
        elements = math.prod(self._shapes[1])
        return unread_lse(self.launches.device, elements)[:elements].view(self._shapes[1])

    @functools.cached_property
    def _default_scale(self) -> float:
        return float(self._workload.head_dim**-0.5)

    @property
    def _workload(self) -> Workload:
        assert self.chosen.workload is not None
        return self.chosen.workload

    def _run(
        self, tensors: CacheTensors, scale: float | None, out: Tensor | None, lse: Tensor
    ) -> Tensor:
        q, k, v, *others = tensors
        if not self.rows_contiguous:
            q = q.contiguous()
        if out is None:
            # empty_like takes half of the time of new_empty.
            is_like = q.shape == self._shapes[0] and q.is_contiguous()
            out = torch.empty_like(q) if is_like else q.new_empty(self._shapes[0])
        given = (q, k, v, out, lse, *[each for each in others if each is not None])
        launch = self.launches.launch
        if scale is not None and scale != self._default_scale:
            launch = self.launches.for_scale(
                scale, lambda: all_heads_first(given, self.options.layout)
            )
        self.launches.start(launch, given)
        return out


@dataclass(frozen=True)
class LibraryCachePlan:
    """Calls an installed library, which allocates the output itself."""

    chosen: Chosen
    options: CacheOptions
    launches: Launches
    device_bytes = 0

    def run(
        self, tensors: CacheTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse)."""
        q, k, v, *others = tensors
        heads = (heads_first(each, self.options.layout) for each in (q, k, v))
        given = *heads, None, None, *[each for each in others if each is not None]
        found, lse = results(self.launches, given, scale, self.chosen.workload)
        found = heads_first(found, self.options.layout)
        return found.contiguous() if out is None else out.copy_(found), lse.contiguous()

    def output(self, tensors: CacheTensors, scale: float | None, out: Tensor | None) -> Tensor:
        """Runs a call; returns `out` alone."""
        return self.run(tensors, scale, out)[0]


@dataclass(frozen=True)
class PyTorchCachePlan:
    """Computes calls in PyTorch, one sequence after the other. It waits for the device."""

    chosen: Chosen
    options: CacheOptions
    device_bytes: int = 0

    def run(
        self, tensors: CacheTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse)."""
        call = CacheCall.of(tensors, self.options, scale)
        out = call.new_out() if out is None else out
        if has_no_numbers(call.q):
            return out, call.new_lse()
        lse, view = call.new_lse(), heads_first(out, self.options.layout)
        lengths = call.seqlens.tolist()
        for number, keys in enumerate(lengths):
            view[number], lse[number] = of_sequence(call, number, max(0, keys))
        return out, lse

    def output(self, tensors: CacheTensors, scale: float | None, out: Tensor | None) -> Tensor:
        """Runs a call; returns `out` alone."""
        return self.run(tensors, scale, out)[0]


def of_sequence(
    call: CacheCall, number: int, keys: int, window_right: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) of one sequence: (heads, seqlen_q, head_dim_v) and (heads, seqlen_q)."""
    q, page = call.q[number : number + 1], call.page_size
    if call.block_table is None or page is None:
        k, v = call.k[number, :, :keys], call.v[number, :, :keys]
    else:
        pages = call.block_table[number, : ceil_div(keys, page)].long()
        check_pages(pages, call.k.shape[0])
        k, v = (
            as_indexed(each)[pages].transpose(0, 1).flatten(1, 2)[:, :keys].view(each.dtype)
            for each in (call.k, call.v)
        )
    mask = call.options.window_left, window_right, call.softcap
    factors: tuple[Tensor, ...] = ()
    if call.k_descale is not None and call.v_descale is not None:
        of_sequence = slice(number, number + 1)
        factors = q.new_empty(0), call.k_descale[of_sequence], call.v_descale[of_sequence]
    causal, scale = call.options.causal, call.scale
    asked = AttentionInputs(q, k[None], v[None], causal, scale, *mask, factors)
    if keys == 0:
        out, lse = q.new_zeros(asked.out_shape), call.new_lse()[:1].fill_(-math.inf)
    else:
        out, lse = reference.attention(asked)
    if call.sinks is not None:
        out, lse = with_sinks(out, lse, call.sinks, "bhsd")
    return out[0], lse[0]


@dataclass(frozen=True)
class Decode:
    """Attention over a cache, as the job that a plan is made for."""

    call: CacheCall
    out: Tensor | None
    """The output that the caller has given, in the call's layout; None for a new tensor."""
    op = "decode"
    what = "attention over a cache runs"

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """q and the cache, with heads first."""
        return {"q": self.call.q, "k_cache": self.call.k, "v_cache": self.call.v}

    def workload(self) -> Workload:
        """The workload of the call."""
        return self.call.workload()

    def asked(self) -> Workload:
        """The workload that a config is looked up for: no other call of its family changes it. It
        is the call's own without batch invariance."""
        # The window is the caller's: that of the workload is None where the cache is shorter.
        return looked_up.of_cache(self.workload(), self.call.options.window_left)

    def tensors(self) -> tuple[Tensor, ...]:
        """The call's tensors with out and lse, with heads first, as launches are prepared."""
        call = self.call
        out = call.new_out() if self.out is None else self.out
        q, layout = call.q, call.options.layout
        if q.stride(-1) != 1:  # as the plan does for each call: in the caller's layout
            q = heads_first(heads_first(q, layout).contiguous(), layout)
        out = heads_first(out, layout)
        return q, call.k, call.v, out, call.new_lse(), *call.more

    def why_not(self, kernel: Kernel) -> str | None:
        """Returns why a kernel cannot read the call's tensors, whatever it serves; or None."""
        for name, tensor in (("k_cache", self.call.k), ("v_cache", self.call.v), ("out", self.out)):
            if tensor is not None and tensor.stride(-1) != 1:
                return f"the rows of {name} are not contiguous"
        return None

    def plan(self, chosen: Chosen, launches: Launches) -> CachePlan:
        """The plan that starts these launches."""
        if hasattr(launches.launch, "results"):
            return LibraryCachePlan(chosen, self.call.options, launches)
        contiguous = self.call.q.stride(-1) == 1
        return KernelCachePlan(chosen, self.call.options, launches, contiguous)

    def in_pytorch(self, chosen: Chosen) -> CachePlan:
        """The plan that runs the call in PyTorch."""
        return PyTorchCachePlan(chosen, self.call.options)
