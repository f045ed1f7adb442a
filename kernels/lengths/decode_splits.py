"""Common parts of launches of attention over a cache: how much memory splits need, and the steps of
tensors."""

from tunefa.spec.rounding import ceil_div


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


class TritonSplits(Splits):
    """The launches of the portable kernels, which have tiles of `block_m` query rows."""

    forms = "", ""

    def __init__(self, workload, config, sms, block_m):
        super().__init__(workload, config, sms)
        self._row_tiles = ceil_div(workload.group * workload.seqlen_q, block_m)
        self._tiles = workload.heads_kv * self._row_tiles
        self._most_ctas, self._heads = sms * config["CTAS_PER_SM"], workload.heads

    def launches(self, batch, keys, table_row, of_inputs, of_out):
        """Returns what a call gives, by the steps of what the first kernel reads, of the output,
        and with what follows these in its arguments."""
        before, behind = of_inputs
        splits = self.splits(keys)
        numbers = (
            *(*before, *of_out, *behind),
            *(table_row, batch, self.heads_kv, self.seqlen_q, keys, self._row_tiles, splits),
        )
        combining = *of_out, self._heads, self.seqlen_q, keys, splits
        ctas = min(batch * self._tiles * splits, self._most_ctas), batch * self.rows
        return self.scratch(batch, splits), ((ctas[0], numbers), (ctas[1], combining))
