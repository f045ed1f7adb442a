"""The parts of the launches of attention_bwd_triton that follow the batch and the lengths."""

import torch
from tunefa.kernels.attention_bwd_triton import _PADDING
from tunefa.kernels.lengths.decode_splits import steps


def resized_gradients(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes; None where it does not apply."""
    is_served = not workload.varlen and workload.band in ((None, None), (None, 0))
    return _Resized(workload, config) if is_served else None


class _Resized:
    forms = "", ""

    def __init__(self, workload, config):
        self._heads, self._heads_kv = workload.heads, workload.heads_kv
        self._rows, self._keys = config["BLOCK_M2"], config["BLOCK_N1"]
        self._section = config["L2_SECTION_HEADS"]

    def variant(self, rows, keys):
        return None

    def decides(self, batch, rows, keys):
        return None

    def tables(self, batch, rows, keys, device):
        return ()

    def __call__(self, asked, tables):
        batch, rows, keys, (q, k, v, out, lse, dout, dlse, dq, dk, dv), _ = asked
        heads, heads_kv = batch * self._heads, batch * self._heads_kv
        tiles = -(-rows // _PADDING)
        padded = tiles * _PADDING
        before = *steps(out), *steps(dout), *lse[3:6], *dlse[3:6]
        query_tiles, key_tiles = -(-rows // self._rows), -(-keys // self._keys)
        strides = [step for each in (q, k, v, dout, dq, dk, dv) for step in steps(each)]
        sizes = self._heads, heads, heads_kv, query_tiles, key_tiles, self._section
        launches = (
            # The last number says that all rows begin at multiples of 16 bytes.
            (tiles * heads, (*before, self._heads, rows, 0, padded, tiles, 1)),
            (
                query_tiles * heads + key_tiles * heads_kv,
                (*strides, *sizes, rows, keys, 0, padded),
            ),
        )
        memory = (heads, padded), torch.float32
        return (memory, memory), launches
