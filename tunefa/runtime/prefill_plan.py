"""The plans of attention of packed queries over a cache with pages: a plan runs calls with one
kernel and config, or in PyTorch where no kernel serves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import batch_of_one
from tunefa.runtime.call import Options
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_call import CacheCall, CacheOptions
from tunefa.runtime.decode_plan import of_sequence
from tunefa.runtime.kernel_plan import Launches
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors
from tunefa.spec.kernel import Kernel
from tunefa.spec.workload import Workload


class PrefillPlan(Protocol):
    """Runs all calls of one key, see `tunefa.runtime.prefill_call.key`."""

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs, and why."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that it holds."""

    def run(
        self, tensors: PrefillTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` in `out` if given."""


@dataclass(frozen=True)
class KernelPrefillPlan:
    """Launches one compiled config, on the tensors' device and its current stream."""

    chosen: Chosen
    launches: Launches

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the plan holds."""
        return self.launches.launch.device_bytes

    def run(
        self, tensors: PrefillTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse)."""
        w = self.chosen.workload
        assert w is not None
        q, k, v = _with_contiguous_queries(tensors.q), tensors.k, tensors.v
        if out is None:
            out = q.new_empty((q.shape[0], w.heads, w.head_dim_v))
        lse = q.new_empty((w.heads, q.shape[0]), dtype=torch.float32)
        more = tensors.of_launch
        launch = self.launches.launch
        if scale is not None and scale != w.head_dim**-0.5:
            first = q, k.transpose(1, 2), v.transpose(1, 2), out, lse, *more
            launch = self.launches.for_scale(scale, lambda: first)
        self.launches.start(launch, (q, k, v, out, lse, *more))
        return out, lse


@dataclass(frozen=True)
class PyTorchPrefillPlan:
    """Computes calls in PyTorch, one sequence after the other. It waits for the device."""

    chosen: Chosen
    options: Options
    device_bytes: int = 0

    def run(
        self, tensors: PrefillTensors, scale: float | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse). Raises TunefaError for cu_seqlens_q that are not
        cumulative lengths within q, or a sequence with more queries than max_seqlen_q."""
        call = PrefillCall.of(tensors, self.options, scale)
        out = call.new_out() if out is None else out
        lse = call.new_lse()
        if call.q.is_meta or 0 in out.shape:
            return out, lse
        starts, lengths = tensors.cu_seqlens_q.tolist(), tensors.seqlens_k.tolist()
        self._check(starts, call.q.shape[0])
        for number, keys in enumerate(lengths):
            rows = slice(starts[number], starts[number + 1])
            if rows.start == rows.stop:
                continue
            one = _sequence(call, number, rows)
            seen = min(max(0, keys), call.most_keys)
            made, made_lse = of_sequence(one, 0, seen, self.options.window_right)
            out[rows], lse[:, rows] = made.transpose(0, 1), made_lse
        return out, lse

    def _check(self, starts: list[int], rows: int) -> None:
        if starts != sorted(starts) or starts[0] < 0 or starts[-1] > rows:
            raise TunefaError(
                f"cu_seqlens_q is {starts}: give cumulative lengths, which never decrease, as row "
                f"numbers of q from 0 to {rows}"
            )
        most = max((end - begin for begin, end in pairwise(starts)), default=0)
        if most > self.options.max_seqlen_q:
            raise TunefaError(
                f"max_seqlen_q is at most {self.options.max_seqlen_q} and a sequence is {most} "
                f"long: give the length of the longest sequence, or more"
            )


def _sequence(call: PrefillCall, number: int, rows: slice) -> CacheCall:
    """Returns a sequence of a call as attention over a cache with a batch of one."""
    given, options = call.tensors, call.options
    here = slice(number, number + 1)
    k_descale, v_descale = (each if each is None else each[here] for each in given[-2:])
    return CacheCall(
        batch_of_one(call.q[rows]),
        call.k,
        call.v,
        given.seqlens_k[here],
        given.block_table[here],
        given.sinks,
        k_descale,
        v_descale,
        call.scale,
        CacheOptions(options.causal, options.window_left, options.softcap, "bhsd"),
    )


def _with_contiguous_queries(q: Tensor) -> Tensor:
    return q if q.stride(-1) == 1 else q.contiguous()


@dataclass(frozen=True)
class Prefill:
    """Attention of packed queries over a cache with pages, as the job that a plan is made for."""

    call: PrefillCall
    out: Tensor | None
    """The output that the caller has given; None for a new tensor."""
    op = "prefill"
    what = "attention of packed queries over pages runs"

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """q and the cache, with heads first."""
        return {"q": self.call.q, "k": self.call.k, "v": self.call.v}

    def workload(self) -> Workload:
        """The workload of the call."""
        return self.call.workload()

    def asked(self) -> Workload:
        """The workload of the call."""
        return self.call.workload()

    def tensors(self) -> tuple[Tensor, ...]:
        """The call's tensors with out and lse, with heads first, as launches are prepared."""
        call = self.call
        out = call.new_out() if self.out is None else self.out
        q = _with_contiguous_queries(call.q)
        return q, call.k, call.v, out, call.new_lse(), *call.tensors.of_launch

    def why_not(self, kernel: Kernel) -> str | None:
        """Returns why a kernel cannot read the call's tensors, whatever it serves; or None."""
        for name, tensor in (("k", self.call.k), ("v", self.call.v), ("out", self.out)):
            if tensor is not None and tensor.stride(-1) != 1:
                return f"the rows of {name} are not contiguous"
        return None

    def plan(self, chosen: Chosen, launches: Launches) -> PrefillPlan:
        """The plan that starts these launches."""
        return KernelPrefillPlan(chosen, launches)

    def in_pytorch(self, chosen: Chosen) -> PrefillPlan:
        """The plan that runs the call in PyTorch."""
        return PyTorchPrefillPlan(chosen, self.call.options)
