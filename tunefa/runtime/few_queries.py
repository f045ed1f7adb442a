"""Calls of `flash_attention` with few queries over many keys, which run as attention over a cache.

The kernels of the forward pass do not split the keys of a sequence. So a call with fewer tiles of
queries than the device has SMs leaves SMs idle, and reads the keys at a part of the memory's speed.
The kernels of the op `decode` split them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tunefa.compile.launch.lengths import CacheSizes
from tunefa.compile.launch.prepared import apart
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.choice import Chosen
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import CachePlan, Decode
from tunefa.runtime.family_call import FamilyCall, contiguous
from tunefa.runtime.kernel_plan import Launches
from tunefa.spec.looked_up import are_few, leaves_idle

TENSORS = 6
"""q, k, v, out, lse and the lengths."""
MOST_KEYS = 2**30
"""More keys than a cache has, of which kernels compute with 32 bits."""


def serves(tensors: Tensors, options: Options, sms: int) -> bool:
    """Whether a call has so few queries that the forward pass would leave half of the SMs idle, and
    otherwise only what attention over a cache has too."""
    q, k, v, cu_seqlens, descales = tensors
    if cu_seqlens is not None or descales or q.dtype not in (torch.bfloat16, torch.float16):
        return False
    if options.window_right is not None or (options.window_left is not None and not options.causal):
        return False
    if not q.dim() == k.dim() == v.dim() == 4 or not k.stride(-1) == v.stride(-1) == 1:
        return False
    at = 1 if options.layout == "bshd" else 2  # the axis of lengths
    if not are_few(q.shape[at], k.shape[at]):
        return False
    return leaves_idle(q.shape[0], k.shape[3 - at], sms)


def job(tensors: Tensors, options: Options) -> FewQueries:
    """The job of a call that `serves` accepts. Raises TunefaError for the first argument that does
    not fit."""
    over = CacheOptions(options.causal, options.window_left, options.softcap, options.layout)
    return FewQueries(CacheCall.of(with_lengths(tensors), over, None), None)


@dataclass(frozen=True)
class FewQueries(Decode):
    """Attention over a cache whose sequences all have all keys, as the job of a forward pass."""

    what = "attention of few queries is left to the forward pass, as it would run"

    def plan(self, chosen: Chosen, launches: Launches) -> FewQueriesPlan:  # type: ignore[override]
        """The plan that starts these launches."""
        why = f"few queries, so the keys are split as over a cache; {chosen.why}"
        chosen = replace(chosen, why=why)
        return self._over_cache(super().plan(chosen, launches))

    def in_pytorch(self, chosen: Chosen) -> FewQueriesPlan:  # type: ignore[override]
        """The plan that runs the call in PyTorch."""
        return self._over_cache(super().in_pytorch(chosen))

    def _over_cache(self, plan: CachePlan) -> FewQueriesPlan:
        return FewQueriesPlan(plan, self.call.options.layout, self.call.seqlens)


@dataclass(eq=False)  # not frozen: that takes three times as long to make
class FewQueriesPlan:
    """Runs all calls of one key of the forward pass by a plan for attention over a cache."""

    over_cache: CachePlan
    layout: str
    seqlens: Tensor
    """See `all_keys`."""

    @property
    def chosen(self) -> Chosen:
        """The kernel and config that it runs, and why."""
        return self.over_cache.chosen

    @property
    def is_of_kernel(self) -> bool:
        """Whether a kernel runs the calls."""
        return self.chosen.how != "pytorch"

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the plan holds."""
        return self.over_cache.device_bytes

    def run(self, tensors: Tensors, scale: float | None) -> tuple[Tensor, Tensor]:
        """Runs a call; returns (out, lse), with `out` in the call's layout."""
        return self.over_cache.run(self._with_lengths(tensors), scale, None)

    def output(self, tensors: Tensors, scale: float | None) -> Tensor:
        """Runs a call; returns `out` alone."""
        return self.over_cache.output(self._with_lengths(tensors), scale, None)

    def _with_lengths(self, tensors: Tensors) -> CacheTensors:
        q, k, v, _, _ = tensors
        # The class itself would take twice the time.
        return tuple.__new__(CacheTensors, (q, k, v, self.seqlens, None, None, None, None))


def with_lengths(tensors: Tensors) -> CacheTensors:
    """Returns the tensors of a call over a cache, whose sequences all have all keys."""
    q, k, v = tensors[:3]
    return CacheTensors(q, k, v, all_keys(q.get_device(), q.shape[0]))


@functools.cache
def all_keys(device: int, batch: int) -> Tensor:
    """The lengths of sequences that fill their cache, whatever its size: kernels take a length
    beyond the cache for that of the cache. They are never freed, as CUDA graphs hold their address;
    few queries have small batches, so there are few of them."""

    def made() -> Tensor:
        return torch.full((batch,), MOST_KEYS, dtype=torch.int32, device=place)

    place = "cpu" if device < 0 else f"cuda:{device}"
    return made() if device < 0 else apart(device, made)


def sizes(call: FamilyCall, layout: str) -> CacheSizes:
    """Returns the sizes of a call of the forward pass as those of one over a cache."""
    batch, rows, keys = call.lengths
    q, k, v = call.sizes
    out = contiguous((batch, q[1], rows, v[3]), layout)
    return CacheSizes(batch, keys, 0, (q, k, v, out), ())
