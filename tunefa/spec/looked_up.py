"""The workload that a call of the runtime looks its config up for, where that is another one.

* Attention over a cache runs one config for all batches and numbers of keys, so that a sequence has
  the same bits in every batch.
* A forward pass with few queries over many keys runs as attention over a cache: the kernels of the
  forward pass do not split the keys of a sequence, and those of the op `decode` do.
"""

from __future__ import annotations

from dataclasses import replace

from tunefa.spec.workload import Workload
from tunefa.spec.workload_parts import ACCURACIES

USUAL_BATCH, USUAL_KEYS = 16, 8192
"""The batch and the number of keys that a config of attention over a cache is looked up for."""
MOST_QUERIES = 16
"""The most queries of a sequence that are few; the kernels of both ops have tiles for so many."""
LEAST_KEYS = 1024
"""The fewest keys that are many. Fewer are read soon by one CTA too; no measurement decided just
this number."""


def of_call(workload: Workload, sms: int) -> Workload:
    """Returns the workload that calls of this one look their config up for, on a device with so
    many SMs: its own, or that of attention over a cache."""
    return of_record(run_as(workload, sms))


def run_as(workload: Workload, sms: int) -> Workload:
    """Returns the workload that calls of this one run as, on a device with so many SMs: itself, or
    attention over a cache of the same size."""
    w = workload
    return over_cache(w) if is_few(w) and leaves_idle(w.batch, w.heads_kv, sms) else w


def of_record(workload: Workload) -> Workload:
    """Returns the workload that the config of a record or a plan for this one is looked up for.

    A window that hides no key is not a part of a workload. So for a cache that is no longer than
    its window it is the workload without a window, though calls look up the one with theirs.
    """
    return of_cache(workload, workload.window_left) if workload.op == "decode" else workload


def of_cache(workload: Workload, window_left: int | None) -> Workload:
    """Returns the workload that a config is looked up for where attention over a cache has this
    one and this window. It is its own where the bits may follow the batch.

    No call says how its lengths differ, or asks for less accuracy.
    """
    if workload.batchvariant:
        return workload
    keys = USUAL_KEYS if window_left is None else max(USUAL_KEYS, window_left + 2)
    return replace(
        workload, batch=USUAL_BATCH, seqlen_k=keys, window_left=window_left,
        varlen=False, accuracy=ACCURACIES[0],
    )  # fmt: skip


def over_cache(workload: Workload) -> Workload:
    """Returns a workload as attention over a cache. Raises TunefaError where that cannot be, such
    as for a head_dim or a dtype that no cache has."""
    return replace(workload, op="decode")


def is_few(workload: Workload) -> bool:
    """Whether a forward pass has few queries over many keys, and otherwise only what attention over
    a cache has too.

    `runtime.few_queries.serves` says the same of the tensors of a call. One query with a window to
    the right is the exception: that window hides nothing, so workloads do not have it.
    """
    w = workload
    if w.op != "fwd" or w.varlen or w.dtype not in ("bf16", "fp16") or w.accuracy != ACCURACIES[0]:
        return False
    masked = w.window_right is None and (w.causal or w.window_left is None)
    return masked and are_few(w.seqlen_q, w.seqlen_k)


def are_few(rows: int, keys: int) -> bool:
    """Whether there are few queries over many keys."""
    return 0 < rows <= MOST_QUERIES and keys >= LEAST_KEYS


def leaves_idle(batch: int, heads_kv: int, sms: int) -> bool:
    """Whether the forward pass of few queries would leave half of the SMs idle."""
    return 2 * batch * heads_kv <= sms
