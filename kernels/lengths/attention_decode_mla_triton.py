"""The parts of the launches of attention_decode_mla_triton that follow the batch and the cache."""

from tunefa.kernels.lengths.decode_splits import TritonSplits, steps


def resized_cache(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes."""
    return _Resized(workload, config, sms, config["BLOCK_M"])


class _Resized(TritonSplits):
    def __call__(self, asked):
        batch, keys, table_row, (q, kv, _, out), _ = asked
        read = (*steps(q), *steps(kv))
        return self.launches(batch, keys, table_row, (read, ()), steps(out))
