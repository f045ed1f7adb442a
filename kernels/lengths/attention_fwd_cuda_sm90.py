"""What of a launch of attention_fwd_cuda_sm90 follows the batch and the lengths."""

from tunefa.kernels.hopper import first_tiles
from tunefa.kernels.lengths.tile_tables import TileTables, is_served


def resized(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes; None where it does not apply."""
    return _Resized(workload, config) if is_served(workload) else None


class _Resized(TileTables):
    def __init__(self, workload, config):
        super().__init__(workload, config)
        self._all_heads = workload.heads

    def tables(self, spec, device):
        return first_tiles.tables(spec, device)

    def variant(self, rows, keys):
        return not self._is_causal and keys % self._block_n != 0

    def numbers(self, batch, rows, keys, sizes, tables):
        (tiles, schedule_at), (_, tiles_at) = tables
        return tiles - 1, (schedule_at, tiles_at, self._all_heads, rows, keys)
