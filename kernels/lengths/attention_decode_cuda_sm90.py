"""The parts of the launches of attention_decode_cuda_sm90 that follow the batch and the cache."""

from tunefa.kernels.attention_decode_cuda_sm90 import (
    _COMBINING_CTAS,
    _COUNTER_WORDS,
    _MOST_SCRATCH_BYTES,
    _MOST_SPLITS,
    _inverse,
)
from tunefa.kernels.lengths.decode_splits import steps


def resized_cache(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes."""
    return _Resized(workload, config, sms)


class _Resized:
    def __init__(self, workload, config, sms):
        self._is_alone = bool(config["LAST_CTA_COMBINES"])
        # The strides of q and out, those of out alone, and the first sizes.
        self.forms = ("2qi4x2qi4x9i2I", "2qi4x9i2I")[: 2 - self._is_alone]
        self._counts = workload.heads_kv * self._is_alone
        """Counts of a sequence behind the counter of splits."""
        self._heads_kv, self._seqlen_q = workload.heads_kv, workload.seqlen_q
        self._rows, self._head_dim_v = workload.heads * workload.seqlen_q, workload.head_dim_v
        self._least, self._most = config["LEAF_KEYS"], config["MOST_LEAVES"]
        self._depth = 2 ** config["TREE_DEPTH"]
        self._row_bytes = 4 * workload.head_dim_v + 8
        self._most_ctas, self._most_combining = sms * config["CTAS_PER_SM"], _COMBINING_CTAS * sms
        self._constants = workload.window_left or 0, config["SPLIT_COST"]
        self._inverse_heads_kv = _inverse(workload.heads_kv)

    def __call__(self, asked):
        batch, keys, table_row, (q, _, _, out), _ = asked
        rows, most = batch * self._rows, min(-(-keys // self._least), self._most)
        usual = min(_MOST_SPLITS, _MOST_SCRATCH_BYTES // (rows * self._row_bytes))
        splits = max(1, min(most, max(usual, -(-most // self._depth))))
        ctas = min(batch * self._heads_kv * splits, self._most_ctas)
        sizes = batch, self._heads_kv, self._seqlen_q, keys, splits, table_row
        inverses = _inverse(ctas), self._inverse_heads_kv
        combining = *steps(out), *sizes, *self._constants, ctas, *inverses
        first = ctas, (*steps(q), *combining)
        words = _COUNTER_WORDS + batch * self._counts
        scratch = (rows, splits, self._head_dim_v), (rows + -(-words // splits), splits, 2)
        if self._is_alone:
            return scratch, (first,)
        return scratch, (first, (min(rows, self._most_combining), combining))
