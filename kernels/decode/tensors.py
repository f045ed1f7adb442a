"""The tensors of attention over a cache, as both of its kernels take them."""

import math

LOG2_E = math.log2(math.e)


def most_keys(tensors, workload):
    """The keys that the cache of one sequence has room for."""
    if workload.page_size:
        return tensors[6].shape[1] * workload.page_size
    return tensors[1].shape[2]


def table_and_sinks(tensors, workload):
    """Returns (block table, sinks). Where there are none, the kernels read neither, so any pointer
    does."""
    more = list(tensors[6:-2])
    table = more.pop(0) if workload.page_size else tensors[5]
    return table, more.pop(0) if workload.sinks else tensors[-1]


def descales(tensors, workload):
    """Returns the factors of k and of v, (batch, heads_kv) each. Where there are none, the kernels
    read neither, so any tensors with two axes do."""
    if workload.e4m3cache:
        return tensors[-4:-2]
    return tensors[4], tensors[4]


def table_row(tensors, workload):
    """Elements from one sequence's pages to the next one's in the block table."""
    return tensors[6].stride(0) if workload.page_size else 0


def score_factors(spec):
    """Returns (scale_log2, tanh_scale): scores become powers of two, and with a soft-cap the first
    factor applies after the tanh and the second one before it."""
    if spec.workload.softcap:
        return [spec.softcap * LOG2_E, spec.scale / spec.softcap]
    return [spec.scale * LOG2_E, 0.0]


def sees_all_keys(workload):
    """Whether the causal mask hides nothing: one query is the last of its sequence."""
    return not workload.causal or workload.seqlen_q == 1
