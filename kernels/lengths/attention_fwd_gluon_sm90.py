"""What of a launch of attention_fwd_gluon_sm90 follows the batch and the lengths."""

from tunefa.kernels.lengths.tile_tables import TileTables, is_served


def resized(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes; None where it does not apply."""
    return _Resized(workload, config) if is_served(workload) else None


class _Resized(TileTables):
    def __init__(self, workload, config):
        super().__init__(workload, config)
        self._all_heads = workload.heads

    def variant(self, rows, keys):
        if not self._is_causal:
            return keys % self._block_n != 0
        return keys < rows or (keys - rows) % 64 != 0

    def numbers(self, batch, rows, keys, sizes, tables):
        (tiles, schedule_at), (_, tiles_at) = tables
        window_right = 0 if self._is_causal else rows - 1
        places = schedule_at, tiles_at
        return tiles - 1, (*places, self._all_heads, rows, keys, 0, window_right)
