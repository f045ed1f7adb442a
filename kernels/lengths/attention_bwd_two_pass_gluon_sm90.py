"""The parts of the launches of attention_bwd_two_pass_gluon_sm90 that follow the batch and the
lengths."""

from dataclasses import replace

import torch
from tunefa.kernels.gluon.host import gradient_tiles, key_gradients, query_gradients
from tunefa.kernels.lengths.decode_splits import steps

from tunefa.spec.rounding import round_up


def resized_gradients(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes; None where it does not apply."""
    is_served = not workload.varlen and workload.band in ((None, None), (None, 0))
    return _Resized(workload, config, sms) if is_served else None


class _Resized:
    forms = "", ""

    def __init__(self, workload, config, sms):
        self._workload, self._config, self._sms = workload, config, sms
        self._heads, self._heads_kv = workload.heads, workload.heads_kv
        self._is_causal, self._section = workload.causal, config["L2_SECTION_HEADS"]
        self._block_m, self._block_n = config["BLOCK_M1"], config["BLOCK_N2"]
        self._tile_rows = 64 * config["WARPGROUPS2"]
        self._tile_keys = 64 * key_gradients._pieces(workload, config)
        self._of_queries, self._of_keys = config["PERSISTENT2"] == 1, config["PERSISTENT1"] == 1

    def variant(self, rows, keys):
        if self._is_causal:
            return (keys - rows) % 64 != 0
        return keys % self._block_n != 0, keys % self._tile_keys != 0

    def decides(self, batch, rows, keys):
        """Returns what its tables depend on: the costs of the tiles of a head, and the batch."""
        found = [batch]
        if self._of_queries:
            found.append(tuple(self._costs_of_queries(rows, keys)))
        if self._of_keys:
            found.append(tuple(self._costs_of_keys(rows, keys)))
        return tuple(found)

    def tables(self, batch, rows, keys, device):
        w = replace(self._workload, batch=batch, seqlen_q=rows, seqlen_k=keys)
        made = []
        for is_wanted, module in (
            (self._of_queries, query_gradients),
            (self._of_keys, key_gradients),
        ):
            if is_wanted:
                costs = module._costs(w, self._config)
                ctas = min(len(costs), self._sms)
                made.append(gradient_tiles.table(costs, ctas, device))
        return tuple(made)

    def __call__(self, asked, tables):
        batch, rows, keys, (_, _, _, out, _, _, dlse, _, _, _), _ = asked
        padded = round_up(rows, query_gradients._ROWS)
        query_tiles = batch * self._heads * -(-padded // self._tile_rows)
        key_tiles = batch * self._heads_kv * -(-keys // self._tile_keys)
        before = self._heads, self._heads_kv, rows, keys, padded
        behind = self._section, 0, 0 if self._is_causal else rows - 1
        of_queries, of_keys = query_tiles, key_tiles
        if self._of_queries:
            of_queries = min(query_tiles, self._sms)
        if self._of_keys:
            of_keys = min(key_tiles, self._sms)
        strides = *[step // 8 for step in steps(out)], *dlse[3:6]
        at = (tables[:1], tables[1:]) if self._of_queries else ((), tables)
        launches = (
            (of_queries, (*strides, *before, query_tiles, *behind, *at[0])),
            (of_keys, (*before, key_tiles, *behind, *at[1])),
        )
        memory = (batch * self._heads * padded,), torch.float32
        return (memory, memory), launches

    def _costs_of_queries(self, rows, keys):
        """Yields the key blocks of each tile of the dQ pass, the last rows first."""
        if not self._is_causal:
            # Tiles of padding cost less.
            yield from (-(-rows // self._tile_rows), -(-rows // query_gradients._ROWS))
            yield -(-keys // self._block_n)
            return
        for row in reversed(range(0, round_up(rows, query_gradients._ROWS), self._tile_rows)):
            end = min(min(row + self._tile_rows, rows) + keys - rows, keys)
            yield -(-max(end, 1) // self._block_n) if row < rows else 1

    def _costs_of_keys(self, rows, keys):
        """Yields the query blocks of each tile of the dKV pass."""
        if not self._is_causal:
            yield from (-(-keys // self._tile_keys), -(-rows // self._block_m))
            return
        for key in range(0, keys, self._tile_keys):
            first = max(0, key - keys + rows) // self._block_m
            yield max(1, -(-rows // self._block_m) - first)
