"""The parts of the launches of attention_decode_triton that follow the batch and the cache."""

from tunefa.kernels.attention_decode_triton import _block_m
from tunefa.kernels.lengths.decode_splits import TritonSplits, steps


def resized_cache(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes."""
    return _Resized(workload, config, sms)


class _Resized(TritonSplits):
    def __init__(self, workload, config, sms):
        super().__init__(workload, config, sms, _block_m(workload))
        # Without factors the kernel gets lse in their place.
        self._lse_steps = None if workload.e4m3cache else (self.rows, self.seqlen_q) * 2

    def __call__(self, asked):
        batch, keys, table_row, (q, k, v, out), descale_steps = asked
        read = (*steps(q), *steps(k), *steps(v))
        given = read, self._lse_steps or descale_steps
        return self.launches(batch, keys, table_row, given, steps(out))
