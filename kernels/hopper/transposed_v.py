"""V^T, which a preprocess kernel writes for 8-bit attention on Hopper: its memory, V's strides."""

from tunefa.spec.rounding import round_up

KEYS = 16
"""Keys that are reordered among each other; the length of a row of V^T is a multiple of it."""


def scratch(workload):
    """Returns shape and dtype of V^T, (batch, heads_kv, head_dim_v, keys), keys in whole groups."""
    import torch  # importing it takes seconds, and compiling does not need it

    keys = round_up(workload.seqlen_k, KEYS)
    shape = (workload.batch, workload.heads_kv, workload.head_dim_v, keys)
    return [(shape, torch.float8_e4m3fn)]


def strides(v):
    """Returns V's strides of batch, head and key in units of 16 bytes; v is (batch, heads_kv,
    seqlen_k, head_dim_v)."""
    return [step // 16 for step in v.stride()[:3]]
