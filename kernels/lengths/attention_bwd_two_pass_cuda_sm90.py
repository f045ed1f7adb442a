"""The parts of the launches of attention_bwd_two_pass_cuda_sm90 that follow the batch and the
lengths."""

from dataclasses import replace

import torch
from tunefa.kernels import attention_bwd_two_pass_cuda_sm90 as host
from tunefa.kernels.gluon.host import gradient_tiles
from tunefa.kernels.lengths.decode_splits import steps


def resized_gradients(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes; None where it does not apply."""
    is_served = not workload.varlen and workload.band in ((None, None), (None, 0))
    return _Resized(workload, config, sms) if is_served else None


class _Resized:
    def __init__(self, workload, config, sms):
        self._workload, self._config = workload, config
        self._of_queries, self._of_keys = config["PERSISTENT2"], config["PERSISTENT1"]
        self._right = 0 if workload.causal else host._FAR
        self._cluster = config["CLUSTER_SIZE1"]
        self._sms, self._clusters = sms, sms // self._cluster
        # The table, if there is one; two structures of three strides; sizes.
        self.forms = f"{self._of_queries + 15}q", f"{self._of_keys + 9}q"

    def variant(self, rows, keys):
        return None

    def decides(self, batch, rows, keys):
        """Returns what its tables depend on: the costs of the tiles of a head, and the batch."""
        w = self._resized(1, rows, keys)
        found = [batch]
        if self._of_queries:
            found.append(tuple(host.query_costs(w, self._config)))
        if self._of_keys:
            found.append(tuple(host.key_costs(w, self._config)))
        return tuple(found)

    def tables(self, batch, rows, keys, device):
        w, made = self._resized(batch, rows, keys), []
        for is_wanted, costs_of, most in (
            (self._of_queries, host.query_costs, self._sms),
            (self._of_keys, host.key_costs, self._clusters),
        ):
            if is_wanted:
                costs = costs_of(w, self._config)
                made.append(gradient_tiles.table(costs, min(len(costs), most), device))
        return tuple(made)

    def __call__(self, asked, tables):
        batch, rows, keys, (_, _, _, out, _, _, dlse, _, _, _), _ = asked
        w = self._workload
        padded = host.padded_rows(rows, self._config)
        query_tiles = batch * w.heads * -(-rows // host._ROWS)
        key_tiles = batch * w.heads_kv * -(-keys // (64 * self._cluster))
        edges = keys - rows + self._right, host._FAR + 1 + self._right
        before = w.heads, w.heads_kv, rows, keys, *edges, padded
        section = self._config["L2_SECTION_HEADS"]
        query_lists, key_lists = query_tiles, key_tiles
        if self._of_queries:
            query_lists = min(query_tiles, self._sms)
        if self._of_keys:
            key_lists = min(key_tiles, self._clusters)
        at = [*map(int, tables)]
        of_queries, of_keys = at[: self._of_queries], at[self._of_queries :]
        launches = (
            (query_lists, (*of_queries, *steps(out), *dlse[3:6], *before, query_tiles, section)),
            (key_lists * self._cluster, (*of_keys, *before, key_tiles, section)),
        )
        memory = (batch * w.heads * padded,), torch.float32
        return (memory, memory), launches

    def _resized(self, batch, rows, keys):
        return replace(self._workload, batch=batch, seqlen_q=rows, seqlen_k=keys)
