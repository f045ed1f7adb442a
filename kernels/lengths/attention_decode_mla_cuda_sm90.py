"""The parts of launches of attention_decode_mla_cuda_sm90 that follow the batch and the cache."""

from tunefa.kernels.attention_decode_mla_cuda_sm90 import _COMBINING_CTAS, _ROWS
from tunefa.kernels.lengths.decode_splits import Splits, steps

from tunefa.spec.rounding import round_up


def resized_cache(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes, unless splits follow the batch."""
    return None if workload.batchvariant else _Resized(workload, config, sms)


class _Resized(Splits):
    forms = "2qi4x2qi4x7i", "2qi4x7i"
    """The strides of q and out, those of out alone, and the first sizes."""

    def __init__(self, workload, config, sms):
        super().__init__(workload, config, sms)
        cluster = config["CLUSTER_SIZE"]
        self._row_tiles = round_up(workload.group * workload.seqlen_q, _ROWS * cluster) // _ROWS
        self._tiles, self._most_ctas = workload.heads_kv * self._row_tiles, sms // cluster * cluster

    def __call__(self, asked):
        batch, keys, table_row, (q, _, _, out), _ = asked
        splits = self.splits(keys)
        sizes = batch, self.heads_kv, self.seqlen_q, keys, self._row_tiles, splits, table_row
        combining = *steps(out), *sizes
        ctas = min(batch * self._tiles * splits, self._most_ctas)
        combining_ctas = min(batch * self.rows, _COMBINING_CTAS * self.sms)
        launches = (ctas, (*steps(q), *combining)), (combining_ctas, combining)
        return self.scratch(batch, splits), launches
