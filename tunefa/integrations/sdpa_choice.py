"""Decides which calls of scaled_dot_product_attention tunefa computes, and which PyTorch does.

What runs a call is chosen as for `tunefa.flash_attention`: among tunefa's kernels and the libraries
inside PyTorch, which are kernels too. tunefa computes the call

* by a record that was measured on this chip family for a workload nearby;
* by a default that was measured on this chip family: `priority` in search_spaces/ says which
  kernels come before the libraries there;
* by anything else only if the cost model expects it to be faster than FlashAttention-2. What that
  takes is the model's time for tunefa's kernel of the same algorithm and the same instructions.

If the choice is what PyTorch would run itself, PyTorch runs it. Kernels that are shorter than the
host's detour through Python are left to PyTorch too, but in CUDA graphs, which have no host time.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Literal

import torch

from tunefa.costmodel.estimate import expected_us
from tunefa.costmodel.roofline import roofline
from tunefa.errors import TunefaError
from tunefa.measure.gradients import Gradients
from tunefa.runtime import process
from tunefa.runtime.backward import BackwardPlan
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.plan import Plan
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.rounding import next_pow2
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

Rival = Literal["fa2", "cudnn"]
"""The library inside PyTorch that computes the call without tunefa."""
SAME_ALGORITHM = "attention_fwd_cuda_sm80"
"""FlashAttention-2 with the instructions of sm80, as PyTorch has it."""
LEAST_US = 15.0
"""The least time on the chip of a call that tunefa takes outside of CUDA graphs. The detour through
Python takes the host about as long."""


def forward_plan(tensors: Tensors, options: Options, rival: Rival) -> Plan | None:
    """The plan of a call that tunefa computes; None where PyTorch is to compute it."""
    try:
        plan = process.current().plan(tensors, options)
    except TunefaError:  # a call that tunefa does not take, or a lock file without its record
        return None
    return plan if is_taken(plan.chosen, tensors.q.device, rival) else None


def backward_plan(
    tensors: Tensors, options: Options, given: Gradients, rival: Rival
) -> BackwardPlan | None:
    """The plan for the gradients of a call that tunefa computes; None where PyTorch is to compute
    them. `given` is as `backward.as_kernels_take_it` returns it."""
    try:
        plan = process.current().backward_plan(tensors, options, given)
    except TunefaError:
        return None
    return plan if is_taken(plan.chosen, tensors.q.device, rival) else None


def is_taken(chosen: Chosen, device: torch.device, rival: Rival) -> bool:
    """Whether tunefa computes a call on a device, for which this was chosen."""
    workload = chosen.workload
    if chosen.how == "pytorch" or workload is None:
        return False
    is_measured = chosen.how in ("exact", "nearest", "other-device")
    config = tuple(chosen.config.items())
    least_us = _taken_us(
        chosen.kernel, config, is_measured, _rounded(workload), device.index or 0, rival
    )
    return least_us >= LEAST_US or (least_us > 0.0 and _is_capturing())


@functools.lru_cache(maxsize=4096)
def _rounded(workload: Workload) -> Workload:
    """The workload with lengths rounded up to powers of two: calls with growing lengths share what
    is decided."""
    q, k = next_pow2(workload.seqlen_q), next_pow2(workload.seqlen_k)
    return replace(workload, seqlen_q=q, seqlen_k=k)


@functools.lru_cache(maxsize=4096)
def _taken_us(
    name: str,
    config: tuple[tuple[str, Any], ...],
    is_measured: bool,
    workload: Workload,
    device: int,
    rival: Rival,
) -> float:
    """The least time on the chip of a workload that tunefa computes with a config; 0 of one that
    PyTorch is to compute."""
    target = Chip.of(torch.device("cuda", device)).target
    if target is None or name.endswith(f"_{rival}"):
        return 0.0
    case = Case(_kernel(name), workload, target)
    if is_measured or _is_known(case) or (rival == "fa2" and _is_expected(case, dict(config))):
        return roofline(workload, target).least_us
    return 0.0


def _is_known(case: Case) -> bool:
    """Whether the kernel comes before PyTorch's libraries by what was measured on the chip family:
    its default there, or for a library that computes gradients, its place among them."""
    if case.kernel.is_library:
        return case.workload.op == "bwd"
    try:
        return case.kernel.first_default(case.workload, case.arch).is_known_on(case.arch)
    except TunefaError:  # it has no default for this workload
        return False


def _is_expected(case: Case, config: Config) -> bool:
    """Whether the cost model expects a forward pass to be faster than FlashAttention-2's."""
    same = Case(_kernel(SAME_ALGORITHM), case.workload, case.target)
    if case.workload.op != "fwd" or case.kernel.is_library or same.why_not() is not None:
        return False
    try:
        return expected_us(case, config) < expected_us(same, same.default())
    except TunefaError:  # it has no default for this workload
        return False


@functools.cache  # its files do not change while a program runs
def _kernel(name: str) -> Kernel:
    return kernels.load(name)


def _is_capturing() -> bool:
    """Whether a CUDA graph captures the calls of this thread."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
