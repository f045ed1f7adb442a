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
    return of_record(over_cache(workload) if _runs_over_cache(workload, sms) else workload)


def of_record(workload: Workload) -> Workload:
    """Returns the workload that the config of a record or a plan for this one is looked up for."""
    return of_cache(workload, workload.window_left)


def of_cache(workload: Workload, window_left: int | None) -> Workload:
    """Returns the workload that a config is looked up for where attention over a cache has this
    one and this window. It is its own for other ops, and where the bits may follow the batch."""
    if workload.op != "decode" or workload.batchvariant:
        return workload
    keys = USUAL_KEYS if window_left is None else max(USUAL_KEYS, window_left + 2)
    return replace(workload, batch=USUAL_BATCH, seqlen_k=keys, window_left=window_left)


def over_cache(workload: Workload) -> Workload:
    """Returns a forward pass as attention over a cache. Raises TunefaError for one that is none."""
    return Workload.parse(str(workload).replace("fwd_", "decode_", 1))


def is_few(workload: Workload) -> bool:
    """Whether a forward pass has few queries over many keys, and otherwise only what attention over
    a cache has too."""
    w = workload
    masked = w.window_right is None and (w.causal or w.window_left is None)
    plain = not w.varlen and masked and w.dtype in ("bf16", "fp16") and w.accuracy == ACCURACIES[0]
    return w.op == "fwd" and plain and are_few(w.seqlen_q, w.seqlen_k)


def are_few(rows: int, keys: int) -> bool:
    """Whether there are few queries over many keys."""
    return 0 < rows <= MOST_QUERIES and keys >= LEAST_KEYS


def leaves_idle(batch: int, heads_kv: int, sms: int) -> bool:
    """Whether the forward pass of few queries would leave half of the SMs idle."""
    return 2 * batch * heads_kv <= sms


def _runs_over_cache(workload: Workload, sms: int) -> bool:
    return is_few(workload) and leaves_idle(workload.batch, workload.heads_kv, sms)
