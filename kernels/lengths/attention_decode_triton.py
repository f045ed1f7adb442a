"""What of the launches of attention_decode_triton follows the batch and the cache."""

from tunefa.kernels.attention_decode_triton import _block_m
from tunefa.kernels.lengths.decode_splits import Splits, steps

from tunefa.spec.rounding import ceil_div


def resized_cache(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes."""
    return _Resized(workload, config, sms)


class _Resized(Splits):
    forms = "", ""

    def __init__(self, workload, config, sms):
        super().__init__(workload, config, sms)
        self._row_tiles = ceil_div(workload.group * workload.seqlen_q, _block_m(workload))
        self._tiles = workload.heads_kv * self._row_tiles
        self._most_ctas, self._heads = sms * config["CTAS_PER_SM"], workload.heads
        # Without factors the kernel gets lse in their place.
        self._lse_steps = None if workload.e4m3cache else (self.rows, self.seqlen_q) * 2

    def __call__(self, asked):
        batch, keys, table_row, (q, k, v, out), descale_steps = asked
        splits, of_out = self.splits(keys), steps(out)
        numbers = (
            *(*steps(q), *steps(k), *steps(v), *of_out, *(self._lse_steps or descale_steps)),
            *(table_row, batch, self.heads_kv, self.seqlen_q, keys, self._row_tiles, splits),
        )
        combining = *of_out, self._heads, self.seqlen_q, keys, splits
        ctas = min(batch * self._tiles * splits, self._most_ctas), batch * self.rows
        return self.scratch(batch, splits), ((ctas[0], numbers), (ctas[1], combining))
