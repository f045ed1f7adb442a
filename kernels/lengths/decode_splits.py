"""What launches of attention over a cache have in common: how much memory splits need, and the
steps of tensors."""


def steps(sizes):
    """Returns the strides of batches, heads and rows of a tensor."""
    return sizes[4:7]


class Splits:
    """The memory for splits as `scratch` in attention_decode_triton.py lays it out."""

    def __init__(self, workload, config, sms):
        self.sms, self.heads_kv, self.seqlen_q = sms, workload.heads_kv, workload.seqlen_q
        self.rows = workload.heads * workload.seqlen_q
        self.head_dim_v = workload.head_dim_v
        self._least, self._most = config["MIN_SPLIT_KEYS"], config["MAX_SPLITS"]

    def splits(self, keys):
        """Returns for how many splits each sequence has memory."""
        return max(1, min(self._most, -(-keys // self._least)))

    def scratch(self, batch, splits):
        """Returns the shapes of the outputs of splits and of their logsumexps."""
        rows = batch * self.rows
        return (rows, splits, self.head_dim_v), (rows, splits)
