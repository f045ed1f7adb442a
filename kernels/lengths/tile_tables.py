"""What of the tables in hopper/tile_table.py follows the batch and the lengths, for dense calls
without a window."""

import math

from tunefa.kernels.hopper import tile_table


def is_served(workload):
    """Whether a workload is dense, in 16 bits and without a window."""
    band = workload.band in ((None, None), (None, 0))
    return band and not workload.varlen and workload.dtype != "e4m3"


class TileTables:
    """The numbers on which the tables of a config depend, in two microseconds."""

    def __init__(self, workload, config):
        self._is_causal = workload.causal
        self._rows, self._block_n = 64 * config["WARPGROUPS"], config["BLOCK_N"]
        pack = config.get("PACK_GQA", 1)
        self._rows //= pack
        self._step = math.gcd(self._rows, self._block_n)
        group = 1 if config.get("CLUSTER_SIZE", 1) > 1 else workload.group
        self._group, self._pack = group, pack
        self._heads = workload.heads_kv * group
        self._key_bytes = 2 * (workload.head_dim + workload.head_dim_v)
        sections = [config["L2_SECTION_MB"]]
        while 2 * sections[-1] <= tile_table._MOST_MB:
            sections.append(2 * sections[-1])
        self._section_bytes = [mb * 2**20 for mb in sections]

    def decides(self, batch, rows, keys):
        """Returns what decides the tables, and what `tile_table.specialize` changes."""
        tiles = -(-rows // self._rows)
        if not self._is_causal:
            return batch, tiles
        most, kv_bytes = batch * self._heads // self._pack, self._key_bytes * keys
        sections = most  # where the least section holds all heads
        if self._section_bytes[0] // kv_bytes * self._group // self._pack < most:
            sections = tuple(
                [
                    min(max(1, int(each / kv_bytes)) * self._group // self._pack, most)
                    for each in self._section_bytes
                ]
            )
        offset = -((rows - keys) // self._step)
        return batch, tiles, offset, -(-keys // self._block_n), sections

    def tables(self, spec, device):
        """Returns (schedule, tiles)."""
        return tile_table.tables(spec, device)
