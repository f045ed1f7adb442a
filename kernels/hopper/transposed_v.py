"""V^T, which 8-bit attention on Hopper has written before it runs: its memory, and V's strides."""

KEYS = 16
"""Keys that are reordered among each other; rows of V^T are as many bytes long, or a multiple."""


def scratch(workload):
    """Shape and dtype of V^T, (batch, heads_kv, head_dim_v, keys), keys in whole groups."""
    import torch  # takes seconds, which compiling does without

    keys = -(-workload.seqlen_k // KEYS) * KEYS
    shape = (workload.batch, workload.heads_kv, workload.head_dim_v, keys)
    return [(shape, torch.float8_e4m3fn)]


def strides(v):
    """Those of batch, head and key, in 16 bytes; v is (batch, heads_kv, seqlen_k, head_dim_v)."""
    return [step // 16 for step in v.stride()[:3]]
